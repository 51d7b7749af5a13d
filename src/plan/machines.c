/* machines.c - presets: chips by data sheet with measured shares, and the clusters that published results come from.
 *
 * Shares of products are the best rates people measured on long runs of large ones (ml-engineering's MAMF), links those
 * of nccl-tests: 0.85 of a slow link. A cluster of published results may
 * have one other number, a share or the power that its chips get; bench_plan finds it.
 */
#include "plan/machine.h"
#include <assert.h>
#include <stdlib.h>

struct chip_row {
    const char *name;
    double fp32, half, fp8, fp4; /* Tflop/s */
    double gib, tbps;
    int n_units, generation;
    double gemm, stream;
    const char *node; /* its usual one */
    double price;
};

static const struct chip_row chips[] = {
    { "V100-16GB", 15.7, 125, 0, 0, 16, 0.9, 80, 70, 0.75, 0.80, "dgx1", 1.0 },
    { "V100-32GB", 15.7, 125, 0, 0, 32, 0.9, 80, 70, 0.75, 0.80, "dgx2", 1.2 },
    { "T4-16GB", 8.1, 65, 0, 0, 15, 0.32, 40, 75, 0.60, 0.80, "pcie3", 0.4 },
    { "A10-24GB", 31.2, 125, 0, 0, 24, 0.6, 72, 86, 0.75, 0.80, "pcie4", 0.8 },
    { "A100-40GB", 19.5, 312, 0, 0, 40, 1.555, 108, 80, 0.87, 0.82, "hdr", 1.5 },
    { "A100-80GB", 19.5, 312, 0, 0, 80, 2.039, 108, 80, 0.87, 0.82, "hdr", 1.8 },
    { "A100-80GB-PCIe", 19.5, 312, 0, 0, 80, 1.935, 108, 80, 0.75, 0.82, "pcie4", 1.6 },
    { "A800-80GB", 19.5, 312, 0, 0, 80, 2.039, 108, 80, 0.87, 0.82, "nvlink200", 1.6 },
    { "H100-80GB", 66.9, 989.4, 1978.9, 0, 80, 3.352, 132, 90, 0.80, 0.85, "ndr", 2.9 },
    { "H100-80GB-PCIe", 51.2, 756.4, 1512.9, 0, 80, 2.039, 114, 90, 0.65, 0.85, "pcie5", 2.4 },
    { "H100-96GB-500W", 66.9, 989.4, 1978.9, 0, 96, 2.4, 132, 90, 0.80, 0.85, "ndr", 2.7 },
    { "H200-141GB", 66.9, 989.4, 1978.9, 0, 141, 4.8, 132, 90, 0.80, 0.85, "ndr", 3.6 },
    { "GH200-96GB", 66.9, 989.4, 1978.9, 0, 96, 4.0, 132, 90, 0.84, 0.85, "ndr", 3.2 },
    { "H800-80GB", 66.9, 989.4, 1978.9, 0, 80, 3.352, 132, 90, 0.80, 0.85, "ib50", 2.5 },
    { "H20-96GB", 44, 148, 296, 0, 96, 4.0, 78, 90, 0.80, 0.85, "ndr", 1.5 },
    { "B200-180GB", 80, 2250, 4500, 9000, 180, 7.7, 148, 100, 0.78, 0.85, "dgx-b200", 5.5 },
    { "B300-288GB", 80, 2250, 4500, 13500, 288, 8.0, 148, 103, 0.79, 0.85, "dgx-b300", 6.5 },
    { "GB200-186GB", 80, 2450, 4900, 9800, 186, 8.0, 148, 100, 0.73, 0.85, "nvl72", 6.0 },
    { "GB300-288GB", 80, 2500, 5000, 15000, 288, 8.0, 148, 103, 0.73, 0.85, "nvl72", 7.0 },
    { "L40S-48GB", 91.6, 362, 733, 0, 48, 0.864, 142, 89, 0.65, 0.82, "pcie4", 0.9 },
    { "L4-24GB", 30.3, 121, 242, 0, 24, 0.3, 58, 89, 0.60, 0.82, "pcie4", 0.6 },
    { "A40-48GB", 37.4, 149.7, 0, 0, 48, 0.696, 84, 86, 0.75, 0.82, "pcie4", 0.5 },
    { "A6000-48GB", 38.7, 154.8, 0, 0, 48, 0.768, 84, 86, 0.75, 0.82, "pcie4", 0.5 },
    { "RTX6000Ada-48GB", 91.1, 364, 728, 0, 48, 0.96, 142, 89, 0.65, 0.82, "pcie4", 0.8 },
    { "RTX3090-24GB", 35.6, 71, 0, 0, 24, 0.936, 82, 86, 0.85, 0.85, "pcie4", 0.25 },
    { "RTX4090-24GB", 82.6, 165.2, 330.3, 0, 24, 1.008, 128, 89, 0.90, 0.88, "pcie4", 0.4 },
    { "RTX5090-32GB", 104.8, 209.5, 419, 838, 32, 1.792, 170, 120, 0.90, 0.88, "pcie5", 0.6 },
    { "MI250X-64GB", 47.9, 191.5, 0, 0, 64, 1.6, 110, 0, 0.60, 0.80, "infinity", 1.0 }, /* one of its two dies */
    { "MI325X-256GB", 163.4, 1307.4, 2614.9, 0, 256, 6.0, 304, 0, 0.51, 0.80, "infinity", 2.6 },
    { "MI355X-288GB", 157.3, 2516, 5033, 10066, 288, 8.0, 256, 0, 0.55, 0.80, "infinity", 4.0 },
    { "MI300X-192GB", 163.4, 1307.4, 2614.9, 0, 192, 5.3, 304, 0, 0.51, 0.80, "infinity", 2.2 },
};

struct cluster_row {
    const char *name;
    int domain, node;        /* chips that the fast link joins; chips of a host */
    double fast, fast_share; /* GB/s, one direction, of one chip; 0: by the chip */
    double slow, slow_share;
    double slow_us; /* latency */
    double power;   /* share of the clock that its power allows */
};

/* fast 0: NVLink of the chip's generation. */
static const struct cluster_row clusters[] = {
    { "dgx1", 8, 8, 0, 0, 6.25, 0.85, 20, 1 },
    { "dgx2", 16, 16, 0, 0, 6.25, 0.85, 20, 1 },
    { "hdr", 8, 8, 0, 0, 25, 0.85, 15, 1 },
    { "ndr", 8, 8, 0, 0, 50, 0.85, 15, 1 },
    { "xdr", 8, 8, 0, 0, 100, 0.85, 15, 1 },
    { "roce200", 8, 8, 0, 0, 25, 0.85, 20, 1 },
    { "roce400", 8, 8, 0, 0, 50, 0.85, 20, 1 },
    { "ethernet100", 8, 8, 0, 0, 1.56, 0.70, 50, 1 },
    { "efa", 8, 8, 0, 0, 50, 0.85, 30, 1 },
    { "pcie3", 8, 8, 12, 0.8, 1.5, 0.8, 30, 1 }, /* between the chips of a host; 100, 200, 400 Gb/s for all of them */
    { "pcie4", 8, 8, 24, 0.8, 3.1, 0.8, 30, 1 },
    { "pcie5", 8, 8, 48, 0.8, 6.2, 0.8, 30, 1 },
    { "nvlink200", 8, 8, 200, 0.78, 25, 0.85, 15, 1 },
    { "selene", 8, 8, 0, 0, 25, 0.85, 15, 1 },
    { "superpod", 8, 8, 0, 0, 25, 0.85, 15, 1 },
    { "jeanzay-opa", 8, 8, 0, 0, 6.25, 0.18, 25, 1 },
    { "megascale", 8, 8, 0, 0, 25, 0.85, 20, 1 },
    { "mosaic-roce1600", 8, 8, 0, 0, 25, 0.85, 20, 1 },
    { "meta", 8, 8, 0, 0, 25, 0.35, 20, 1 },
    { "azure", 8, 8, 0, 0, 25, 0.85, 20, 1 },
    { "ibm-400g", 8, 8, 0, 0, 6.25, 0.85, 20, 1 },
    { "ibm-800g", 8, 8, 0, 0, 12.5, 0.85, 20, 1 },
    { "meta-roce2000", 8, 8, 0, 0, 31.25, 0.85, 20, 1 },
    { "sea-roce", 8, 8, 0, 0, 25, 0.85, 20, 1 },
    { "nv-ndr", 8, 8, 0, 0, 50, 0.85, 15, 1 },
    { "eos-ndr", 8, 8, 0, 0, 50, 0.85, 15, 1 },
    { "meta-roce", 8, 8, 0, 0, 50, 0.85, 20, 1 },
    { "grandteton", 8, 8, 0, 0, 50, 0.85, 20, 0.75 },
    { "mosaic", 8, 8, 0, 0, 50, 0.85, 20, 1 },
    { "hf-efa", 8, 8, 0, 0, 50, 0.49, 30, 1 },
    { "cx7-400", 8, 8, 0, 0, 50, 0.85, 15, 1 },
    { "ib50", 8, 8, 200, 0.8, 50, 0.85, 15, 1 },
    { "dgx", 8, 8, 0, 0, 50, 0.85, 15, 1 },
    { "node", 8, 8, 0, 0, 50, 0.85, 15, 0.34 }, /* torchtitan's power-limited B200 */
    { "dgx-b200", 8, 8, 0, 0, 50, 0.85, 15, 1 },
    { "dgx-b300", 8, 8, 0, 0, 100, 0.85, 15, 1 },
    { "nvl72", 72, 4, 0, 0, 50, 0.85, 15, 1 },
    { "infinity", 8, 8, 448, 0.7, 50, 0.80, 20, 1 },
};

/* NVLink by generation: GB/s one direction, what collectives get of it, latency and ramp in us (nccl-tests). */
static struct tr_link nvlink_of(int generation)
{
    static const struct {
        int generation;
        double rate, share, latency_us, ramp_us;
    } rows[] = {
        { 70, 150, 0.80, 25, 200 }, { 80, 300, 0.78, 25, 180 }, { 90, 450, 0.84, 18, 100 }, { 100, 900, 0.80, 18, 100 }
    };
    size_t i = TR_COUNT_OF(rows) - 1;
    while (i > 0 && rows[i].generation > generation)
        i--;
    return (struct tr_link){ rows[i].rate * 1e9, rows[i].share, rows[i].latency_us * 1e-6, rows[i].ramp_us * 1e-6 };
}

static const struct chip_row *chip_find(const char *name, size_t n)
{
    for (size_t i = 0; i < TR_COUNT_OF(chips); i++) /* the whole name, or up to its size: "H100" is the first H100 */
        if (strncasecmp(chips[i].name, name, n) == 0 && (chips[i].name[n] == '\0' || chips[i].name[n] == '-'))
            return &chips[i];
    return NULL;
}

static const struct cluster_row *cluster_find(const char *name)
{
    for (size_t i = 0; i < TR_COUNT_OF(clusters); i++)
        if (strcasecmp(clusters[i].name, name) == 0)
            return &clusters[i];
    return NULL;
}

/* The name of the list that is nearest, whole or up to its size: "H900" is near H100-80GB. NULL: none is. */
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
    for (size_t i = 0; !near && i < n; i++) /* "H100SXM5" begins like one */
        near = strncasecmp(name, names[i], 2) == 0 ? names[i] : NULL;
    return near;
}

static enum tr_status fail_unknown(const char *what, const char *name, bool is_chip)
{
    const char *names[TR_COUNT_OF(chips) + TR_COUNT_OF(clusters)];
    size_t n = 0;
    char esc[80];
    if (is_chip && (strchr(name, '/') || strstr(name, ".y")))
        return tr_fail(TR_USAGE, "no file \"%s\"; trireme bench machine writes one", tr_escape(name, esc, sizeof esc));
    for (size_t i = 0; is_chip && i < TR_COUNT_OF(chips); i++)
        names[n++] = chips[i].name;
    for (size_t i = 0; !is_chip && i < TR_COUNT_OF(clusters); i++)
        names[n++] = clusters[i].name;
    const char *near = near_of(name, names, n);
    return tr_fail(TR_USAGE, "no %s \"%s\"; %s %s; trireme plan --machine list shows what there is", what,
                   tr_escape(name, esc, sizeof esc), near ? "did you mean" : "one is", near ? near : names[0]);
}

static void fill(const struct chip_row *r, const struct cluster_row *c, struct tr_machine *out)
{
    *out = (struct tr_machine){ .domain = c->domain,
                                .node = c->node,
                                .slow = { c->slow * 1e9, c->slow_share, c->slow_us * 1e-6, 200e-6 },
                                .fast = nvlink_of(r->generation),
                                .host_rate = r->generation >= 90 ? 50e9 : 22e9,
                                .disk_rate = 2e9,
                                .mttf_hours = 50e3 };
    if (c->fast > 0)
        out->fast = (struct tr_link){ c->fast * 1e9, c->fast_share, 25e-6, 150e-6 };
    out->chip = (struct tr_chip){ .peak = { r->fp32 * 1e12, r->half * 1e12, r->fp8 * 1e12, r->fp4 * 1e12 },
                                  .memory_bytes = r->gib * 1024 * 1024 * 1024,
                                  .memory_rate = r->tbps * 1e12,
                                  .n_units = r->n_units,
                                  .generation = r->generation,
                                  .gemm_share = r->gemm * c->power,
                                  .stream_share = r->stream,
                                  .launch_s = 3e-6,
                                  .price = r->price };
    (void)tr_format(out->chip.name, sizeof out->chip.name, "%s", r->name);
    (void)tr_format(out->name, sizeof out->name, "%s@%s", r->name, c->name);
}

enum tr_status tr_machine_find(const char *name, struct tr_machine *out)
{
    char chip[64], first[64];
    const char *at = strchr(name, '@');
    size_t n = at ? (size_t)(at - name) : strlen(name);
    if (n == 0 || n >= sizeof chip || strlen(name) > 127)
        return tr_fail(TR_USAGE, "a machine is CHIP or CHIP@CLUSTER, like H100-80GB@nv-ndr");
    memcpy(chip, name, n);
    chip[n] = '\0';
    const struct chip_row *r = chip_find(chip, n);
    if (!r) { /* "B200-192GB": another size of a chip we know is not that chip, but its bare name is */
        memcpy(first, chip, sizeof first);
        first[strcspn(first, "-")] = '\0';
        r = strchr(chip, '-') ? NULL : chip_find(first, strlen(first));
    }
    if (!r)
        return fail_unknown("chip", chip, true);
    const struct cluster_row *c = cluster_find(at ? at + 1 : r->node);
    if (!c)
        return fail_unknown("cluster", at + 1, false);
    if (at && strcasecmp(at + 1, "dgx") == 0 && cluster_find(r->node)) /* NVIDIA's own box of that chip */
        c = cluster_find(r->node);
    fill(r, c, out);
    return TR_OK;
}

/* Spaces and dashes apart: "RTX 4090" holds "RTX4090". */
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

/* The family is what stands before the first dash, the longest one that the name holds ("GB200" holds "B200"); of its
 * rows the one whose size and socket it names. */
static const struct chip_row *chip_guess(const char *name)
{
    const struct chip_row *best = NULL;
    size_t best_n = 0;
    int best_score = -1;
    for (size_t i = 0; i < TR_COUNT_OF(chips); i++) {
        const char *row = chips[i].name, *size = strchr(row, '-') + 1;
        size_t n = strcspn(row, "-");
        if (n < best_n || !holds(name, row, n))
            continue;
        bool is_card = strstr(row, "PCIe") != NULL;
        int score = 2 * holds(name, size, strcspn(size, "-")) + (is_card == holds(name, "pcie", 4));
        if (n > best_n || score > best_score) {
            best = &chips[i];
            best_n = n;
            best_score = score;
        }
    }
    return best;
}

enum tr_status tr_machine_guess(const char *name, struct tr_machine *out, bool *is_guess)
{
    enum tr_status st = tr_machine_find(name, out);
    char text[128];
    *is_guess = st != TR_OK;
    if (st == TR_OK || tr_format(text, sizeof text, "%s", name) != TR_OK)
        return st;
    char *at = strchr(text, '@');
    if (at)
        *at++ = '\0';
    const struct chip_row *r = chip_find(text, strlen(text));
    r = r ? r : chip_guess(text);
    if (!r)
        return st; /* with the words of tr_machine_find */
    const struct cluster_row *c = at ? cluster_find(at) : NULL;
    fill(r, c ? c : cluster_find(r->node), out);
    tr_error_clear();
    return TR_OK;
}

void tr_machine_list(struct tr_str *out)
{
    tr_str_addf(out, "chips (CHIP, or CHIP@CLUSTER)\n");
    for (size_t i = 0; i < TR_COUNT_OF(chips); i++)
        tr_str_addf(out, "  %-16s %7.1f Tflop/s 16-bit  %4.0f GiB  %5.2f TB/s  usual cluster %-8s  $%.2f/h\n",
                    chips[i].name, chips[i].half, chips[i].gib, chips[i].tbps, chips[i].node, chips[i].price);
    tr_str_addf(out, "clusters\n");
    for (size_t i = 0; i < TR_COUNT_OF(clusters); i++)
        tr_str_addf(out, "  %-16s %2d chips on a fast link, %6.2f GB/s a chip beyond it\n", clusters[i].name,
                    clusters[i].domain, clusters[i].slow);
}
