/* column.h - kernels of one device: a column of the op table, included by ops.h. A column is joined to a row of the
 * device table by its name when an executor opens; plans read its scratch, refusals and traits on machines that do not
 * have the device, so those are in every build.
 */
#ifndef TR_OPS_COLUMN_H
#define TR_OPS_COLUMN_H

struct tr_column {
    const char *name, *device;                       /* its own, and that of the device whose memory it reads */
    tr_kernel (*kernel)(enum tr_opcode op);          /* NULL: not in this build */
    const char *(*refuses)(const struct tr_call *c); /* why this call does not run; NULL: it runs. Reads no data */
    size_t (*scratch)(const struct tr_call *c, int n_threads); /* bytes, for these shapes. Reads no data */
    /* At most TR_UPDATES_MAX calls of one optimizer, whose views have the same dtypes, as one launch: the bits of one
     * after the other. NULL: each is a launch of its own. */
    void (*update)(const struct tr_call *c, int n);
    /* Its libraries, kept in d->library; NULL: it has none. may_choose: kernels may be chosen by timing them, which
     * gives other bits from start to start. */
    enum tr_status (*open)(struct tr_device *d, bool may_choose);
    void (*close)(struct tr_device *d);
    bool fuses;       /* one kernel does several ops: passes side and fuse */
    bool may_reorder; /* with any_order set, sums may be in another order every time */
};

enum { TR_UPDATES_MAX = 32 };

/* The column that trains on a device; NULL: the device has none. */
const struct tr_column *tr_column_of(const char *device);
/* All columns, one by one; NULL after the last. */
const struct tr_column *tr_column_at(size_t i);
/* Why a call that reads and writes elements of this dtype is refused; NULL: it runs. The dtype is that of the op's
 * 8-bit operands where it has some, else that of all its values. */
const char *tr_column_refuses(const struct tr_column *c, enum tr_opcode op, enum tr_dtype dtype);

#endif
