/* column.h - the kernels of one device: a column of the op table. ops.h includes this file.
 *
 * An executor joins a column to a row of the device table by the name of the device. Plans read a column's scratch,
 * refusals and traits on machines that do not have the device, so every build has those.
 */
#ifndef TR_OPS_COLUMN_H
#define TR_OPS_COLUMN_H

struct tr_column {
    const char *name, *device;              /* the column's name; the device whose memory its kernels read */
    tr_kernel (*kernel)(enum tr_opcode op); /* NULL: the kernels are in a module that is not here */
    /* Why the column cannot run this call; NULL: it can. Reads no data. */
    const char *(*refuses)(const struct tr_call *c);
    /* Bytes of scratch that a call of these shapes needs. Reads no data. */
    size_t (*scratch)(const struct tr_call *c, int n_threads);
    /* Runs n <= TR_UPDATES_MAX calls of one optimizer in one launch. Their views have the same dtypes. The bits are
     * those of n launches in order. NULL: each call is a launch of its own. */
    void (*update)(const struct tr_call *c, int n);
    /* Opens the libraries of the column and stores them in d->library; NULL: it uses no library. may_choose: open may
     * pick kernels by timing them, and then two runs may differ in their bits. */
    enum tr_status (*open)(struct tr_device *d, bool may_choose);
    void (*close)(struct tr_device *d);
    bool fuses; /* it has kernels that do several ops at once: enables the passes side and fuse */
    /* linear_add of float32 whose sums have at most so many terms has the bits of linear and add, and is faster where
     * the addend lies in the output: pass fuse joins those. 0: none, or it fuses anyway */
    int64_t add_terms;
    bool may_reorder; /* with any_order set, kernels may use a non-deterministic order of sums */
};

/* The slots of a column whose kernels are in the module of their device. */
struct tr_column_code {
    tr_kernel (*kernel)(enum tr_opcode op);
    void (*update)(const struct tr_call *c, int n);
    enum tr_status (*open)(struct tr_device *d, bool may_choose);
    void (*close)(struct tr_device *d);
};
#define TR_COLUMN_SYMBOL "tr_column_of_module"

enum { TR_UPDATES_MAX = 32 };

/* The column that `train` uses on a device; NULL: the device has none. */
const struct tr_column *tr_column_of(const char *device);
/* Column i of the table; NULL past the last. */
const struct tr_column *tr_column_at(size_t i);
/* Why the column refuses this op with elements of this dtype; NULL: it accepts it. The dtype is that of the op's 8-bit
 * operands where it has some, else that of all its values. */
const char *tr_column_refuses(const struct tr_column *c, enum tr_opcode op, enum tr_dtype dtype);

#endif
