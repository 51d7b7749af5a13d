/* machines.c - chips and clusters by name. Their numbers are the files of share/machines, which the build embeds: a
 * binary that is carried alone knows them, and nothing is searched for at run time. A machine is the usual numbers,
 * then those of the chip, then those of the cluster, each file read on top of the one before.
 */
#include "plan/machine_impl.h"

static const struct tr_machine_file *file_find(const struct tr_machine_file *files, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcasecmp(files[i].name, name) == 0)
            return &files[i];
    return NULL;
}

/* The whole name, or the part before its size: "H100" is the first chip of that family, H100-80GB. */
static const struct tr_machine_file *chip_find(const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < tr_n_chip_files; i++) {
        const char *row = tr_chip_files[i].name;
        if (strncasecmp(row, name, n) == 0 && (row[n] == '\0' || row[n] == '-'))
            return &tr_chip_files[i];
    }
    return NULL;
}

static const struct tr_machine_file *cluster_find(const char *name)
{
    return file_find(tr_cluster_files, tr_n_cluster_files, name);
}

const char *tr_chip_name(size_t i)
{
    return i < tr_n_chip_files ? tr_chip_files[i].name : NULL;
}

const char *tr_cluster_name(size_t i)
{
    return i < tr_n_cluster_files ? tr_cluster_files[i].name : NULL;
}

/* cluster NULL: the chip's usual one. words: of the chip. */
static enum tr_status join(const struct tr_machine_file *chip, const struct tr_machine_file *cluster,
                           struct tr_machine_words *words, struct tr_machine *out)
{
    struct tr_machine m = { .domain = 0 };
    struct tr_machine_words other;
    TR_PASS(tr_machine_apply(&tr_usual_file, &other, &m));
    TR_PASS(tr_machine_apply(chip, words, &m));
    if (!cluster)
        cluster = cluster_find(words->usual_cluster);
    if (!cluster)
        return tr_fail(TR_USAGE, "%s: no cluster \"%s\" in share/machines", chip->name, words->usual_cluster);
    TR_PASS(tr_machine_apply(cluster, &other, &m));
    (void)tr_format(m.chip.name, sizeof m.chip.name, "%s", chip->name);
    (void)tr_format(m.name, sizeof m.name, "%s@%s", chip->name, cluster->name);
    *out = m;
    return TR_OK;
}

/* The nearest of the names, compared whole and without the size: "H900" is near H100-80GB. NULL: none is near. */
static const char *near_of(const char *name, const char *const *names, size_t n)
{
    const char *near = NULL;
    int least = 1 + ((int)strlen(name) + 1) / 3;
    for (size_t i = 0; i < n; i++) {
        char base[64];
        (void)tr_format(base, sizeof base, "%.*s", (int)strcspn(names[i], "-"), names[i]);
        int whole = tr_edit_distance(name, names[i]), part = tr_edit_distance(name, base);
        int distance = whole < part ? whole : part;
        if (distance < least || (near && distance == least && *near != *name && *names[i] == *name)) {
            near = names[i];
            least = distance;
        }
    }
    for (size_t i = 0; !near && i < n; i++) /* "H100SXM5" begins like H100 */
        near = strncasecmp(name, names[i], 2) == 0 ? names[i] : NULL;
    return near;
}

enum { NAMES_MAX = 256 };

static enum tr_status fail_unknown(const char *what, const char *name, const struct tr_machine_file *files, size_t n,
                                   const char *example)
{
    const char *names[NAMES_MAX];
    char esc[80];
    n = n < NAMES_MAX ? n : NAMES_MAX;
    if (files == tr_chip_files && (strchr(name, '/') || strstr(name, ".y")))
        return tr_fail(TR_USAGE, "no file \"%s\"; trireme bench machine writes one", tr_escape(name, esc, sizeof esc));
    for (size_t i = 0; i < n; i++)
        names[i] = files[i].name;
    const char *near = near_of(name, names, n);
    return tr_fail(TR_USAGE, "no %s \"%s\"; %s %s; trireme plan --machine list shows what there is", what,
                   tr_escape(name, esc, sizeof esc), near ? "did you mean" : "one is", near ? near : example);
}

enum tr_status tr_machine_join(const char *chip, const char *cluster, struct tr_machine *out)
{
    const struct tr_machine_file *at = file_find(tr_chip_files, tr_n_chip_files, chip);
    const struct tr_machine_file *in = cluster ? cluster_find(cluster) : NULL;
    struct tr_machine_words words;
    if (!at)
        return fail_unknown("chip", chip, tr_chip_files, tr_n_chip_files, "V100-16GB");
    if (cluster && !in)
        return fail_unknown("cluster", cluster, tr_cluster_files, tr_n_cluster_files, "dgx1");
    return join(at, in, &words, out);
}

enum tr_status tr_machine_find(const char *name, struct tr_machine *out)
{
    char chip[64];
    const char *at = strchr(name, '@'), *cluster = at ? at + 1 : NULL;
    size_t n = at ? (size_t)(at - name) : strlen(name);
    if (n == 0 || n >= sizeof chip || strlen(name) > 127)
        return tr_fail(TR_USAGE, "a machine is CHIP or CHIP@CLUSTER, like H100-80GB@nv-ndr");
    memcpy(chip, name, n);
    chip[n] = '\0';
    const struct tr_machine_file *r = chip_find(chip);
    if (!r)
        return fail_unknown("chip", chip, tr_chip_files, tr_n_chip_files, "V100-16GB");
    if (cluster && strcasecmp(cluster, "dgx") == 0) /* NVIDIA's own node of that chip */
        cluster = NULL;
    return tr_machine_join(r->name, cluster, out);
}

/* ---- the list ---- */

static enum tr_status list_chip(const struct tr_machine_file *file, bool as_json, const char *sep, struct tr_str *out)
{
    struct tr_machine m;
    struct tr_machine_words words;
    enum tr_status st = join(file, NULL, &words, &m);
    double gib = m.chip.memory_bytes / 1073741824.0, peak = m.chip.peak[TR_PRECISION_16] * 1e-12;
    if (st != TR_OK)
        return st;
    if (!as_json) {
        tr_str_addf(out, "  %-16s %7.0f %9.1f %6d %7.0f %8.4g  %-10s %6.2f  %s\n", file->name, gib, peak, m.domain,
                    m.fast.rate * 1e-9, m.slow.rate * 1e-9, words.usual_cluster, m.chip.price, words.about);
        return TR_OK;
    }
    tr_str_addf(out, "%s{\"name\": ", sep);
    tr_str_json(out, file->name);
    tr_str_member(out, ", \"about\": ", words.about);
    tr_str_addf(out,
                ", \"usual_cluster\": \"%s\", \"memory_gib\": %.6g, \"tflops\": %.6g, \"memory_gbps\": %.6g, "
                "\"chips_per_link\": %d, \"fast_gbps\": %.6g, \"slow_gbps\": %.6g, \"price\": %.6g}",
                words.usual_cluster, gib, peak, m.chip.memory_rate * 1e-9, m.domain, m.fast.rate * 1e-9,
                m.slow.rate * 1e-9, m.chip.price);
    return TR_OK;
}

static enum tr_status list_cluster(const struct tr_machine_file *file, bool as_json, const char *sep,
                                   struct tr_str *out)
{
    struct tr_machine m = { .domain = 0 };
    struct tr_machine_words words;
    TR_PASS(tr_machine_apply(file, &words, &m));
    if (!as_json) {
        tr_str_addf(out, "  %-16s %6d %8.4g  %s\n", file->name, m.domain, m.slow.rate * 1e-9, words.about);
        return TR_OK;
    }
    tr_str_addf(out, "%s{\"name\": ", sep);
    tr_str_json(out, file->name);
    tr_str_member(out, ", \"about\": ", words.about);
    tr_str_addf(out, ", \"chips_per_link\": %d, \"chips_per_host\": %d, ", m.domain, m.node);
    if (m.fast.rate > 0) /* else the chip says it */
        tr_str_addf(out, "\"fast_gbps\": %.6g, ", m.fast.rate * 1e-9);
    tr_str_addf(out, "\"slow_gbps\": %.6g}", m.slow.rate * 1e-9);
    return TR_OK;
}

enum tr_status tr_machine_list(bool as_json, struct tr_str *out)
{
    tr_str_addf(out, as_json ? "{\"chips\": ["
                             : "chips: --machine CHIP is a chip in its usual cluster, CHIP@CLUSTER in another\n"
                               "  name                 GiB   Tflop/s  chips  link, GB/s         usual          $/h\n"
                               "                            (16 bit) a link    fast  beyond  cluster    a chip\n");
    for (size_t i = 0; i < tr_n_chip_files; i++)
        TR_PASS(list_chip(&tr_chip_files[i], as_json, i ? ", " : "", out));
    tr_str_addf(out, as_json ? "], \"clusters\": ["
                             : "clusters: chips that a fast link joins, and GB/s of a chip beyond it\n");
    for (size_t i = 0; i < tr_n_cluster_files; i++)
        TR_PASS(list_cluster(&tr_cluster_files[i], as_json, i ? ", " : "", out));
    tr_str_addf(out, as_json ? "]}\n" : "");
    return TR_OK;
}
