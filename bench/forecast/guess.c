/* guess.c - a machine by a name that others wrote: "NVIDIA H100 SXM5 80GB", "H100-80GB@our-own". */
#include "forecast/guess.h"

/* True when the text begins with the word, without regard to case, spaces and dashes: "RTX 4090" and "RTX4090". */
static bool begins(const char *text, const char *word, size_t n)
{
    for (; n > 0 && *text; text++)
        if ((*text | 32) == (*word | 32))
            word++, n--;
        else if (*text != ' ' && *text != '-' && *text != '_')
            return false;
    return n == 0;
}

static bool holds(const char *text, const char *word, size_t n)
{
    for (; *text; text++)
        if (begins(text, word, n))
            return true;
    return false;
}

/* The family of a chip is the part of its name before the first dash. The longest family that the name holds wins
 * ("GB200" holds "B200" too); of its chips the one whose size and socket the name holds. NULL: no family is in it. */
static const char *chip_guess(const char *name)
{
    const char *best = NULL, *row;
    size_t best_n = 0;
    int best_score = -1;
    for (size_t i = 0; (row = tr_chip_name(i)) != NULL; i++) {
        size_t n = strcspn(row, "-");
        const char *size = row + n + (row[n] == '-');
        if (n < best_n || !holds(name, row, n))
            continue;
        bool is_card = strstr(row, "PCIe") != NULL;
        int score = 2 * holds(name, size, strcspn(size, "-")) + (is_card == holds(name, "pcie", 4));
        if (n > best_n || score > best_score) {
            best = row;
            best_n = n;
            best_score = score;
        }
    }
    return best;
}

enum tr_status tr_machine_guess(const char *name, struct tr_machine *out, bool *is_guess)
{
    enum tr_status st = tr_machine_find(name, out);
    struct tr_machine alone;
    char text[128];
    *is_guess = st != TR_OK;
    if (st == TR_OK || tr_format(text, sizeof text, "%s", name) != TR_OK)
        return st;
    char *cluster = strchr(text, '@');
    if (cluster)
        *cluster++ = '\0';
    const char *chip = tr_machine_find(text, &alone) == TR_OK ? alone.chip.name : chip_guess(text);
    if (!chip)
        return st; /* the error of tr_machine_find */
    if (!cluster || tr_machine_join(chip, cluster, out) != TR_OK)
        st = tr_machine_join(chip, NULL, out);
    else
        st = TR_OK;
    tr_error_clear();
    return st;
}
