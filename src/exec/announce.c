/* announce.c - publishes each action before it runs, for the watchdog, and passes its failpoint, where a test may end a
 * rank in the middle of a step (T1). */
#include "exec/exec_impl.h"
#include <assert.h>

static const struct {
    enum tr_phase_kind phase;
    const char *failpoint;
} rows[] = {
#define X(id, name, watched, point, stream) { .phase = TR_PHASE_##watched, .failpoint = point },
    TR_ACTION_LIST(X)
#undef X
};
static_assert(TR_COUNT_OF(rows) == TR_ACTION_KINDS, "one row a kind");

/* Where an action is in the model (base/phase.h). */
static int place_of(const struct tr_model *m, const struct tr_action *a)
{
    int segment = a->of >= 0 ? a->of : a->segment;
    if (segment < 0)
        return TR_PLACE_NONE;
    segment = tr_bucket_segment(m, segment);
    if (segment >= m->n_segments)
        return TR_PLACE_SHARED;
    int layer = m->segment[segment].layer;
    return layer >= 0 ? layer : segment == 0 ? TR_PLACE_EMBED : TR_PLACE_HEAD;
}

enum tr_status tr_exec_announce(const struct tr_run *r, const struct tr_action *a)
{
    bool is_training = r->s->purpose == TR_FOR_TRAIN;
    tr_phase_enter(is_training ? rows[a->kind].phase : TR_PHASE_EVAL, place_of(r->s->model, a), a->micro);
    return is_training ? tr_failpoint(rows[a->kind].failpoint) : TR_OK;
}
