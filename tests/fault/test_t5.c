/* test_t5.c - T5, corruption: bits flipped, files cut, swapped, lost, of another step or run. Every mutant is found
 * before a byte of it is used, the message names the right file, and the scan falls back to the checkpoint before; a
 * clean checkpoint is never refused. usage: fault_t5 [MUTANTS [SEED]]; 100000 for a campaign. */
#include "fault/save_rig.h"
#include <dirent.h>
#include <fcntl.h>

enum { MAX_FILES = 16 };

struct file {
    char name[64]; /* below the checkpoint */
    char path[TR_PATH_MAX];
    char *bytes;
    size_t n, n_header; /* header: what is parsed; all of it for JSON */
};

static struct {
    struct save_rig rig;
    struct file file[MAX_FILES];
    int n_files;
    char newest[TR_PATH_MAX];
    int64_t n_mutants, n_missed, n_misnamed, n_fallbacks;
    bool is_planted; /* the oracle must see a verifier that skips a file */
} c;

static void write_file(const char *path, const char *p, size_t n)
{
    int fd = open(path, O_WRONLY | O_TRUNC | O_CREAT, 0644);
    MUST(fd >= 0 && tr_write_all(fd, path, p, n) == TR_OK);
    close(fd);
}

static void add_files(const char *sub)
{
    char dir[TR_PATH_MAX];
    MUST(tr_path_join(dir, c.newest, sub) == TR_OK);
    DIR *d = opendir(dir);
    MUST(d);
    for (struct dirent *e; (e = readdir(d));) {
        struct file *f = &c.file[c.n_files];
        struct stat info;
        MUST(tr_format(f->name, sizeof f->name, "%s%s%s", sub, *sub ? "/" : "", e->d_name) == TR_OK);
        MUST(tr_path_join(f->path, c.newest, f->name) == TR_OK);
        if (stat(f->path, &info) != 0 || !S_ISREG(info.st_mode))
            continue;
        MUST(tr_file_read(f->path, 1 << 20, &f->bytes, &f->n) == TR_OK);
        uint64_t head = 0;
        for (int i = 7; i >= 0; i--)
            head = head << 8 | (unsigned char)f->bytes[i];
        f->n_header = strstr(f->name, ".safetensors") ? (size_t)head + 8 : f->n;
        c.n_files++;
    }
    closedir(d);
}

/* One mutant is on the disk. */
static void judge(const struct file *f)
{
    enum tr_status st = tr_ckpt_verify(c.newest, "run", NULL);
    const char *base = strrchr(f->name, '/') ? strrchr(f->name, '/') + 1 : f->name;
    if (c.is_planted && strcmp(f->name, "config.json") == 0)
        st = TR_OK;
    c.n_mutants++;
    c.n_missed += st == TR_OK;
    c.n_misnamed += st != TR_OK && !strstr(tr_error_text(), base);
    if (c.n_mutants % 64 == 0) { /* the whole way: the one before is found and loaded */
        int64_t step = 0;
        MUST(rig_load(&c.rig, &step) == TR_OK);
        c.n_fallbacks++;
        c.n_missed += step != 1;
    }
}

static void flip(const struct file *f, size_t at, int bit)
{
    int fd = open(f->path, O_WRONLY);
    char was = f->bytes[at], is = (char)(was ^ (1 << bit));
    MUST(fd >= 0 && pwrite(fd, &is, 1, (off_t)at) == 1);
    judge(f);
    MUST(pwrite(fd, &was, 1, (off_t)at) == 1);
    close(fd);
}

static void cut(const struct file *f, size_t n)
{
    MUST(truncate(f->path, (off_t)n) == 0);
    judge(f);
    write_file(f->path, f->bytes, f->n);
}

/* Whole files: gone, empty, another's bytes, the same file of the step before. */
static void swap_files(void)
{
    for (int i = 0; i < c.n_files; i++) {
        const struct file *f = &c.file[i];
        char old[TR_PATH_MAX], aside[TR_PATH_MAX], *bytes = NULL;
        size_t n = 0;
        MUST(tr_format(aside, sizeof aside, "%s/aside", c.rig.dir) == TR_OK && rename(f->path, aside) == 0);
        judge(f);
        MUST(rename(aside, f->path) == 0);
        for (int k = 0; k < c.n_files; k++)
            if (k != i) {
                write_file(f->path, c.file[k].bytes, c.file[k].n);
                judge(f);
                write_file(f->path, f->bytes, f->n);
            }
        MUST(tr_format(old, sizeof old, "%s/checkpoint-1/%s", c.rig.out, f->name) == TR_OK);
        MUST(tr_file_read(old, 1 << 20, &bytes, &n) == TR_OK);
        if (n != f->n || memcmp(bytes, f->bytes, n) != 0) {
            write_file(f->path, bytes, n);
            if (strcmp(f->name, "trireme/manifest.json") == 0) /* it is good, and of another step */
                c.n_missed += tr_ckpt_verify(c.newest, "run", NULL) == TR_OK;
            else
                judge(f);
            write_file(f->path, f->bytes, f->n);
        }
        free(bytes);
    }
}

/* `latest` is a hint: whatever it says, the scan finds the newest. */
static void spoil_pointer(void)
{
    char path[TR_PATH_MAX], *was = NULL;
    size_t n = 0;
    MUST(tr_path_join(path, c.rig.out, "latest") == TR_OK && tr_file_read(path, 4096, &was, &n) == TR_OK);
    for (size_t i = 0; i < 8 * n; i++) {
        char is[64];
        struct tr_ckpt_info info;
        struct tr_str notes = { 0 };
        bool is_found = false;
        memcpy(is, was, n);
        is[i / 8] = (char)(is[i / 8] ^ (1 << i % 8));
        write_file(path, is, n);
        MUST(tr_ckpt_scan(c.rig.out, "run", &is_found, &info, &notes) == TR_OK);
        c.n_missed += !is_found || info.step != 2 || (!notes.n && i / 8 < n - 1);
        c.n_mutants++;
        tr_str_release(&notes);
    }
    write_file(path, was, n);
    free(was);
}

static void sweep(int64_t n, uint64_t seed)
{
    swap_files();
    spoil_pointer();
    for (int i = 0; i < c.n_files && c.n_mutants < n; i++) { /* every bit of what is parsed, every length of it */
        const struct file *f = &c.file[i];
        bool is_shard = f->n_header != f->n;
        for (size_t at = 0; at < f->n_header && c.n_mutants < n; at++) {
            for (int bit = 0; bit < 8 && !is_shard; bit++)
                flip(f, at, bit);
            if (is_shard)
                flip(f, at, (int)(at % 8));
            cut(f, at);
        }
    }
    while (c.n_mutants < n) /* a bit of each 512 bytes of data, again and again elsewhere */
        for (int i = 0; i < c.n_files; i++)
            for (size_t at = 0; at < c.file[i].n && c.n_mutants < n; at += 512) {
                uint64_t r = rig_random(&seed);
                size_t left = c.file[i].n - at < 512 ? c.file[i].n - at : 512;
                flip(&c.file[i], at + (size_t)(r >> 8) % left, (int)(r % 8));
            }
}

int main(int argc, char **argv)
{
    int64_t n = rig_argument(argc, argv, 1, 4000), seed = rig_argument(argc, argv, 2, 1), step = 0, n_clean = n / 10;
    rig_open(&c.rig);
    MUST(rig_save(&c.rig, 1, 0) == TR_OK && rig_save(&c.rig, 2, 0) == TR_OK);
    MUST(tr_path_join(c.newest, c.rig.out, "checkpoint-2") == TR_OK);
    add_files("");
    add_files("trireme");
    c.is_planted = true;
    swap_files();
    MUST(c.n_missed > 0); /* the oracle can turn red */
    c.is_planted = false;
    c.n_missed = c.n_misnamed = c.n_mutants = c.n_fallbacks = 0;
    sweep(n, (uint64_t)seed);
    for (int64_t i = 0; i < n_clean; i++)
        MUST(rig_load(&c.rig, &step) == TR_OK && step == 2);
    printf("T5 seed %d: %d mutants of %d files, %d missed, %d named wrongly, %d fallbacks loaded; %d clean loads, 0 "
           "refused\n",
           (int)seed, (int)c.n_mutants, c.n_files, (int)c.n_missed, (int)c.n_misnamed, (int)c.n_fallbacks,
           (int)n_clean);
    bool is_good = c.n_missed == 0 && c.n_misnamed == 0;
    for (int i = 0; i < c.n_files; i++)
        free(c.file[i].bytes);
    rig_close(&c.rig);
    return is_good ? 0 : 1;
}
