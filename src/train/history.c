/* history.c - log_history, kept as text beside the place in the log up to which it is complete. Rejected: reading the
 * log at each save (four seconds a million steps). */
#include "train/history.h"
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum { STATE_MAX = 1 << 30 };

void tr_history_init(struct tr_history *h, const struct tr_config *cfg, const struct tr_data *data, int64_t total_steps,
                     const char *events_path)
{
    double rows = (double)tr_data_rows(data);
    *h = (struct tr_history){ .events_path = events_path,
                              .logging_steps = tr_config_steps(cfg->logging_steps, total_steps),
                              .best_step = -1,
                              .epoch_rows = rows,
                              .batch_rows = (double)cfg->train_batch_size,
                              .total_rows = cfg->max_steps > 0 ? INFINITY : ceil(rows * cfg->num_train_epochs) };
}

void tr_history_release(struct tr_history *h)
{
    tr_str_release(&h->text);
}

double tr_history_epoch(const struct tr_history *h, int64_t step)
{
    return h->epoch_rows > 0 ? fmin((double)step * h->batch_rows, h->total_rows) / h->epoch_rows : 0;
}

static void add(struct tr_history *h, const struct tr_event *e)
{
    const char *set = NULL;
    bool is_logged =
        h->logging_steps > 0 && e->step % h->logging_steps == 0 && isfinite(e->grad_norm) && isfinite(e->lr);
    if (!isfinite(e->loss) || !(e->kind == TR_EVENT_EVAL || (e->kind == TR_EVENT_STEP && is_logged)))
        return;
    tr_str_addf(&h->text, "%s\n    {\"epoch\": %.6g, ", h->text.n ? "," : "", tr_history_epoch(h, e->step));
    if (e->kind == TR_EVENT_STEP)
        tr_str_addf(&h->text, "\"grad_norm\": %.9g, \"learning_rate\": %.9g, \"loss\": %.9g", e->grad_norm, e->lr,
                    e->loss);
    else if (tr_json_str(e->json, "set", false, &set) == TR_OK && set)
        tr_str_addf(&h->text, "\"eval_%s_loss\": %.9g", set, e->loss);
    else
        tr_str_addf(&h->text, "\"eval_loss\": %.9g", e->loss);
    tr_str_addf(&h->text, ", \"step\": %" PRId64 "}", e->step);
}

void tr_history_update(struct tr_history *h, int64_t step)
{
    struct tr_events *events = NULL;
    struct tr_event e;
    if (tr_events_open_at(h->events_path, h->at, &events) != TR_OK)
        tr_error_clear();
    while (tr_events_next(events, &e)) {
        if (e.kind <= TR_EVENT_EVAL && e.step > step)
            break;
        add(h, &e);
        h->at = tr_events_at(events);
    }
    tr_events_close(events);
}

void tr_history_resume(struct tr_history *h, const char *checkpoint)
{
    static const char begin[] = "\"log_history\": [", end[] = "]\n}\n";
    char path[TR_PATH_MAX];
    char *text = NULL;
    size_t n = 0, n_end = sizeof end - 1;
    uint64_t n_log = 0;
    int fd = -1;
    if (tr_path_join(path, checkpoint, TR_NAME_TRAINER_STATE) == TR_OK &&
        tr_file_read(path, STATE_MAX, &text, &n) == TR_OK && tr_file_open_read(h->events_path, &fd, &n_log) == TR_OK) {
        close(fd);
        const char *from = strstr(text, begin);
        const char *to = text + n - (n > n_end ? n_end : 0);
        if (from && strcmp(to, end) == 0) {
            from += sizeof begin - 1;
            while (to > from && (to[-1] == ' ' || to[-1] == '\n'))
                to--;
            tr_str_add(&h->text, from, (size_t)(to - from));
            h->at = n_log;
        }
    }
    tr_error_clear(); /* without the file, the log is read */
    free(text);
}
