/* announce.c - what the executor shows before each action, and where a test may end a rank in a step (T1). */
#include "exec/exec_impl.h"

int tr_exec_place(const struct tr_model *m, int segment)
{
    if (segment >= m->n_segments)
        return TR_PLACE_SHARED;
    int layer = m->segment[segment].layer;
    return layer >= 0 ? layer : segment == 0 ? TR_PLACE_EMBED : TR_PLACE_HEAD;
}

enum tr_status tr_exec_pass(const struct tr_exec *e, const struct tr_action *a)
{
    static const uint8_t phases[] = { [TR_DO_FORWARD] = TR_PHASE_FORWARD,
                                      [TR_DO_BACKWARD] = TR_PHASE_BACKWARD,
                                      [TR_DO_BACKWARD_INPUT] = TR_PHASE_BACKWARD,
                                      [TR_DO_BACKWARD_WEIGHT] = TR_PHASE_BACKWARD,
                                      [TR_DO_CLIP] = TR_PHASE_CLIP,
                                      [TR_DO_UPDATE] = TR_PHASE_UPDATE,
                                      [TR_DO_GATHER] = TR_PHASE_GATHER,
                                      [TR_DO_REDUCE] = TR_PHASE_REDUCE,
                                      [TR_DO_SEND] = TR_PHASE_MESSAGE,
                                      [TR_DO_RECV] = TR_PHASE_MESSAGE,
                                      [TR_DO_WAIT] = TR_PHASE_MESSAGE,
                                      [TR_DO_TIE] = TR_PHASE_REDUCE,
                                      [TR_DO_TREE_ADD] = TR_PHASE_REDUCE,
                                      [TR_DO_REDUCE_TP] = TR_PHASE_REDUCE };
    static const char *const points[] = { [TR_DO_FORWARD] = "step.forward",
                                          [TR_DO_BACKWARD] = "step.backward",
                                          [TR_DO_BACKWARD_INPUT] = "step.backward_input",
                                          [TR_DO_BACKWARD_WEIGHT] = "step.backward_weight",
                                          [TR_DO_CLIP] = "step.clip",
                                          [TR_DO_UPDATE] = "step.update",
                                          [TR_DO_GATHER] = "step.gather",
                                          [TR_DO_REDUCE] = "step.reduce",
                                          [TR_DO_SEND] = "step.send",
                                          [TR_DO_RECV] = "step.recv",
                                          [TR_DO_WAIT] = "step.wait",
                                          [TR_DO_TIE] = "step.tie",
                                          [TR_DO_TREE_ADD] = "step.tree_add",
                                          [TR_DO_REDUCE_TP] = "step.reduce_tp" };
    _Static_assert(TR_COUNT_OF(phases) == TR_ACTION_KINDS && TR_COUNT_OF(points) == TR_ACTION_KINDS, "one a kind");
    tr_phase_enter((enum tr_phase_kind)phases[a->kind],
                   a->kind == TR_DO_CLIP ? TR_PLACE_NONE : tr_exec_place(e->c->model, a->segment), a->micro);
    return tr_failpoint(points[a->kind]);
}
