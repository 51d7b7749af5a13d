/* shape.h - the names of the record shapes, and of the ways in which documents become rows. */
#ifndef TR_DATA_SHAPE_H
#define TR_DATA_SHAPE_H

/* What one record is. A shape is a name here, a row in shapes.c, and a word of --data_format (config/options.c, in the
 * same order). */
#define TR_SHAPE_LIST(X)                                                                                               \
    X(AUTO, "auto")                       /* by the first record of each file */                                       \
    X(TEXT, "text")                       /* {"text"} */                                                               \
    X(COMPLETION, "completion")           /* {"prompt", "completion"}, both texts */                                   \
    X(ALPACA, "alpaca")                   /* {"instruction", "input", "output", "system", "history"} */                \
    X(MESSAGES, "messages")               /* {"messages": [{"role", "content"}], "tools"} */                           \
    X(SHAREGPT, "sharegpt")               /* {"conversations": [{"from", "value"}], "system", "tools"} */              \
    X(TOKENS, "tokens")                   /* {"input_ids", "labels"} */                                                \
    X(CHAT_COMPLETION, "chat_completion") /* {"prompt", "completion"}, both lists of messages */                       \
    X(INPUT_OUTPUT, "input_output")       /* {"segments": [{"label", "text"}]} */                                      \
    X(PREFERENCE, "preference")           /* {"prompt", "chosen", "rejected"}, and the columns of encode_pair.c */     \
    X(LABELLED, "labelled")               /* {"prompt", "completion", "label"}, and the columns of encode_label.c */

enum tr_shape {
#define X(name, text) TR_SHAPE_##name,
    TR_SHAPE_LIST(X)
#undef X
        TR_SHAPE_COUNT
};
const char *tr_shape_name(enum tr_shape shape);

/* How documents become rows. */
#define TR_PACK_LIST(X)                                                                                                \
    X(AUTO, "auto")       /* stream for text, bestfit for records that are kept whole */                               \
    X(STREAM, "stream")   /* one stream of tokens, split every T */                                                    \
    X(BESTFIT, "bestfit") /* whole documents, several in a row */                                                      \
    X(NONE, "none")       /* one document in each row */

enum tr_packing {
#define X(name, text) TR_PACK_##name,
    TR_PACK_LIST(X)
#undef X
        TR_PACK_COUNT
};
const char *tr_packing_name(enum tr_packing packing);

/* What becomes of a packed document that is longer than a row. FIT and the rows that SPLIT leaves out are for documents
 * with a mask: of others every token is a target, and FIT splits them. */
enum tr_long {
    TR_LONG_FIT,   /* prompt and answer both lose their ends, so that they fit into a row together (long.h) */
    TR_LONG_SPLIT, /* it continues in further rows; rows without a target are left out */
    TR_LONG_CUT,   /* the first row of it is used */
    TR_LONG_DROP,
    TR_LONG_REFUSE
};

#endif
