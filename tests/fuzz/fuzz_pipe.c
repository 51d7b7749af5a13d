/* fuzz_pipe.c - pipeline schedule files: an accepted order plays to its end, has its messages, and prints as itself.
 */
#include <stdlib.h>
#include <string.h>
#include "parallel/pipe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct tr_pipe *o = NULL, *again = NULL;
    struct tr_str text = { 0 };
    int window = 0;
    if (n < 3)
        return 0;
    int p = 1 + data[0] % 4, v = 1 + data[1] % 2, m = 1 + data[2] % 4;
    char *s = malloc(n - 2);
    if (!s)
        return 0;
    memcpy(s, data + 3, n - 3);
    s[n - 3] = 0;
    if (tr_pipe_read("x", s, p, v, m, &o) == TR_OK) {
        TR_BUG_ON(tr_pipe_window(o, &window) != TR_OK);
        tr_pipe_print(o, &text);
        TR_BUG_ON(tr_pipe_read("x", text.p, p, v, m, &again) != TR_OK);
        TR_BUG_ON(again->first[p] != o->first[p] || again->splits_backward != o->splits_backward);
    }
    tr_pipe_close(o);
    tr_pipe_close(again);
    tr_str_release(&text);
    free(s);
    return 0;
}
