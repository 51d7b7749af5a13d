/* track_impl.h - what the sinks of trackers share: the row of a sink, an event as metrics, protobuf and append-only
 * files. */
#ifndef TR_OBSERVE_TRACK_IMPL_H
#define TR_OBSERVE_TRACK_IMPL_H

#include "observe/observe_impl.h"

struct tr_metric {
    char name[224]; /* "train/loss", "grad_norm/model.norm.weight" */
    double value;   /* finite */
};

enum { TR_HISTOGRAM_BINS = 32 };
struct tr_histogram { /* bins of equal width between the extremes; bin i counts edge[i] < x <= edge[i + 1] */
    double min, max, sum, sum_squares;
    double edge[TR_HISTOGRAM_BINS + 1];
    double count[TR_HISTOGRAM_BINS];
};

struct tr_track_event {
    const struct tr_event *event;
    const char *kind; /* "step", "eval", "fault" ... */
    int64_t step;     /* its own, or that of the last step before it */
    double time;
    const struct tr_metric *metric;
    size_t n_metrics;
    bool is_end;                          /* this start of the run is over; the ends of earlier ones are only text */
    bool is_text;                         /* worth showing as text: faults, layouts, notes */
    const char *histogram_name;           /* NULL: none */
    const struct tr_histogram *histogram; /* of all gradient norms of a step */
};

/* What a sink knows about the run when it opens. Strings live as long as the trackers. */
struct tr_track_run {
    const char *id, *name, *output, *config, *metrics_file;
    bool has_name; /* the user has chosen it */
    int64_t first_step, total_steps;
    double start_time;
};

/* One sink = one file with one row. Each call is made by the tracker thread, one after the other. An error of any call
 * costs the sink: it is reported once and closed with is_over false. */
struct tr_sink_row {
    const char *name;
    const char *note;              /* how the user reads it; %s is the place that open has written to *place */
    enum tr_status (*check)(void); /* NULL: the sink works everywhere */
    /* *from: the first step whose events are wanted; the sink has dropped what it held of that step and later ones.
     * *sink NULL: the user has switched it off by other means. */
    enum tr_status (*open)(const struct tr_track_run *run, void **sink, int64_t *from, struct tr_str *place);
    enum tr_status (*event)(void *sink, const struct tr_track_event *e);
    enum tr_status (*flush)(void *sink);               /* after some events: what was given can be read by others */
    enum tr_status (*close)(void *sink, bool is_over); /* frees the sink in any case */
};
extern const struct tr_sink_row tr_sink_tensorboard, tr_sink_wandb, tr_sink_trackio, tr_sink_prometheus;

/* metrics.c: events as metrics. */
struct tr_metrics {
    struct tr_metric *metric;
    size_t n, n_cap;
    double *norm; /* of the step whose norms are being collected: long lists come in several events */
    size_t n_norms, n_norms_cap;
    struct tr_histogram histogram;
    int64_t last_step;
};
/* false: no memory. out is valid until the next call. */
bool tr_metrics_of(struct tr_metrics *m, const struct tr_event *e, struct tr_track_event *out);
void tr_metrics_release(struct tr_metrics *m);
void tr_str_number(struct tr_str *s, double x); /* 17 digits: the exact value */
/* "2026-08-01T12:00:00.123456+00:00" */
void tr_iso_time(double t, char out[40]);

/* proto.c: protobuf fields at the end of a string, and the two checksums of record files. */
void tr_pb_int(struct tr_str *s, int field, int64_t x);
void tr_pb_double(struct tr_str *s, int field, double x);
void tr_pb_float(struct tr_str *s, int field, float x);
void tr_pb_bytes(struct tr_str *s, int field, const void *p, size_t n);
void tr_pb_text(struct tr_str *s, int field, const char *text);
void tr_pb_doubles(struct tr_str *s, int field, const double *x, size_t n); /* packed */
/* The next field of a message: *value is its number, or *p and *n its bytes. false: the end, or no message. */
struct tr_pb_field {
    int field;
    uint64_t value;
    const unsigned char *p;
    size_t n;
};
bool tr_pb_next(const unsigned char **at, const unsigned char *end, struct tr_pb_field *out);
enum { TR_CRC32 = 0, TR_CRC32C = 1 }; /* polynomials of zlib and of iSCSI, both reflected */
uint32_t tr_crc(int which, uint32_t before, const void *p, size_t n); /* before: 0, or the value so far */
void tr_put_le(unsigned char *at, uint64_t x, int n_bytes);
uint64_t tr_get_le(const unsigned char *at, int n_bytes);

/* proto.c: writes what the string holds at the end of a file and clears it. What could not be written is lost, and the
 * status says why. */
enum tr_status tr_append(int fd, const char *name, struct tr_str *s);

/* leveldb.c: records in LevelDB's log. *at is the place in the file of the next byte of `out`. */
void tr_leveldb_add(struct tr_str *out, off_t *at, const char *p, size_t n);
struct tr_leveldb {
    int fd;
    off_t at;
    struct tr_str record;
};
bool tr_leveldb_next(struct tr_leveldb *l); /* fills the record. false: no whole one is left */

#endif
