/* fate.c - which parameters learn, by patterns of their names. */
#include "optim/optim.h"
#include <fnmatch.h>

bool tr_pattern_matches(const char *pattern, const char *name)
{
    return fnmatch(pattern, name, 0) == 0;
}

/* The position of the last pattern that matches, in the order in which options were given; -1: none matches. */
static int last_match(const struct tr_words *list, const char *name)
{
    int last = -1;
    for (size_t i = 0; i < list->n; i++)
        if (list->position[i] > last && tr_pattern_matches(list->item[i], name))
            last = list->position[i];
    return last;
}

bool tr_param_learns(const struct tr_config *cfg, const char *name)
{
    int learns = last_match(&cfg->trainable, name), rests = last_match(&cfg->frozen, name);
    if (learns < 0 && rests < 0)
        return cfg->trainable.n == 0 || cfg->frozen.n > 0;
    return learns > rests;
}
