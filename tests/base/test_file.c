/* Files: bounded reads, atomic replace under failures and kills, removal that stays inside its tree. */
#include "base/base.h"
#include <setjmp.h>
#include <stdarg.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static char root[TR_PATH_MAX];
static char path_buf[8][TR_PATH_MAX];

/* A path below the test directory; eight are alive at a time. */
static const char *in_root(const char *name)
{
    static int next;
    char *out = path_buf[next++ % 8];
    assert_int_equal(tr_path_join(out, root, name), TR_OK);
    return out;
}

static int make_root(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    if (tr_format(root, sizeof root, "%s/tr-file-XXXXXX", tmp ? tmp : "/tmp") != TR_OK)
        return -1;
    return mkdtemp(root) ? 0 : -1;
}

static int drop_root(void **state)
{
    (void)state;
    return tr_remove_tree(root) == TR_OK && !tr_dir_exists(root) ? 0 : -1;
}

static void assert_content(const char *path, const char *want)
{
    char *text = NULL;
    size_t n = 0;
    assert_int_equal(tr_file_read(path, 1 << 20, &text, &n), TR_OK);
    assert_int_equal(n, strlen(want));
    assert_string_equal(text, want);
    free(text);
}

static void paths_join_with_one_slash_and_a_limit(void **state)
{
    (void)state;
    char out[TR_PATH_MAX], big[TR_PATH_MAX];
    assert_int_equal(tr_path_join(out, "a", "b"), TR_OK);
    assert_string_equal(out, "a/b");
    assert_int_equal(tr_path_join(out, "a/", "b"), TR_OK);
    assert_string_equal(out, "a/b");
    assert_int_equal(tr_path_join(out, "", "b"), TR_OK);
    assert_string_equal(out, "b");
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    assert_int_equal(tr_path_join(out, "a", big), TR_USAGE);
}

static void plain_names_cannot_leave_their_directory(void **state)
{
    (void)state;
    char big[257];
    memset(big, 'x', sizeof big - 1);
    big[256] = 0;
    assert_true(tr_name_is_plain("model-00001.safetensors") && tr_name_is_plain("..a") && tr_name_is_plain(big + 1));
    assert_false(tr_name_is_plain("") || tr_name_is_plain(".") || tr_name_is_plain("..") || tr_name_is_plain("a/b"));
    assert_false(tr_name_is_plain("a\n") || tr_name_is_plain("\x7f") || tr_name_is_plain(big));
}

static void read_is_bounded_and_for_regular_files(void **state)
{
    (void)state;
    char *text = NULL;
    size_t n = 0;
    const char *path = in_root("read");
    assert_int_equal(tr_file_write_atomic(path, "hello", 5), TR_OK);
    assert_content(path, "hello");
    assert_int_equal(tr_file_read(path, 5, &text, &n), TR_OK);
    free(text);
    text = NULL;
    assert_int_equal(tr_file_read(path, 4, &text, &n), TR_USAGE);
    assert_int_equal(tr_file_read(in_root("absent"), 4, &text, &n), TR_USAGE);
    assert_int_equal(tr_file_read(root, 4, &text, &n), TR_USAGE);
    const char *fifo = in_root("fifo");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(tr_file_read(fifo, 4, &text, &n), TR_USAGE); /* and does not hang */
    assert_int_equal(tr_file_write_atomic(fifo, "x", 1), TR_USAGE);
    assert_null(text);
    assert_int_equal(tr_file_read("/proc/self/status", 1 << 20, &text, &n), TR_OK); /* its size says 0 */
    assert_true(n > 0 && strlen(text) == n);
    free(text);
    assert_int_equal(tr_file_write_atomic(path, NULL, 0), TR_OK);
    assert_content(path, "");
}

static void pread_names_the_end_it_hit(void **state)
{
    (void)state;
    char buf[8];
    int fd = -1;
    uint64_t n = 0;
    const char *path = in_root("pread");
    assert_int_equal(tr_file_write_atomic(path, "0123456789", 10), TR_OK);
    assert_int_equal(tr_file_open_read(path, &fd, &n), TR_OK);
    assert_int_equal(n, 10);
    assert_int_equal(tr_pread_all(fd, path, buf, 4, 6), TR_OK);
    assert_memory_equal(buf, "6789", 4);
    assert_int_equal(tr_pread_all(fd, path, buf, 5, 6), TR_IO);
    assert_non_null(strstr(tr_error_text(), "ends at byte 10"));
    assert_int_equal(tr_pread_all(fd, path, buf, 1, UINT64_MAX), TR_USAGE);
    close(fd);
}

static void write_all_survives_short_writes(void **state)
{
    (void)state;
    enum { N = 300000 }; /* several pipe buffers */
    static char data[N], back[N];
    for (int i = 0; i < N; i++)
        data[i] = (char)(i * 31 >> 3);
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        _exit(tr_write_all(ends[1], "pipe", data, N) == TR_OK ? 0 : 1);
    }
    close(ends[1]);
    size_t n = 0;
    for (ssize_t got; (got = read(ends[0], back + n, 4093 < N - n ? 4093 : N - n)) > 0;)
        n += (size_t)got;
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(n, N);
    assert_memory_equal(data, back, N);
    close(ends[0]);
    int full = open("/dev/full", O_WRONLY);
    assert_int_equal(tr_write_all(full, "/dev/full", "x", 1), TR_IO);
    close(full);
}

static int n_entries(const char *dir)
{
    int n = 0;
    char cmd[TR_PATH_MAX + 32];
    assert_int_equal(tr_format(cmd, sizeof cmd, "ls -A '%s' | wc -l", dir), TR_OK);
    FILE *f = popen(cmd, "r");
    assert_int_equal(fscanf(f, "%d", &n), 1);
    pclose(f);
    return n;
}

static void a_failed_write_keeps_the_old_content_and_no_leftover(void **state)
{
    (void)state;
    const char *dir = in_root("atomic"), *path = in_root("atomic/f");
    assert_int_equal(tr_mkdirs(dir), TR_OK);
    assert_int_equal(tr_file_write_atomic(path, "old", 3), TR_OK);
    static const struct {
        const char *spec, *after;
    } rows[] = { { "file.before_fsync:error", "old" },
                 { "file.after_fsync:error", "old" },
                 { "file.after_rename:error", "new" } };
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++) {
        assert_int_equal(tr_failpoint_setup(rows[i].spec, 0), TR_OK);
        assert_int_equal(tr_file_write_atomic(path, "new", 3), TR_IO);
        assert_content(path, rows[i].after);
        assert_int_equal(n_entries(dir), 1);
    }
    assert_int_equal(tr_failpoint_setup("", 0), TR_OK);
    assert_int_equal(tr_file_write_atomic(in_root("absent/f"), "x", 1), TR_USAGE);
}

static void a_killed_write_leaves_the_old_or_the_new_content(void **state)
{
    (void)state;
    const char *path = in_root("killed");
    static const struct {
        const char *spec, *after;
    } rows[] = { { "file.before_fsync:kill", "old" },
                 { "file.after_fsync:kill", "old" },
                 { "file.after_rename:kill", "new" } };
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++) {
        assert_int_equal(tr_file_write_atomic(path, "old", 3), TR_OK);
        pid_t pid = fork();
        if (pid == 0) {
            if (tr_failpoint_setup(rows[i].spec, 0) == TR_OK)
                (void)tr_file_write_atomic(path, "new", 3);
            _exit(0);
        }
        int status = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        assert_content(path, rows[i].after);
    }
}

static void a_link_is_replaced_and_its_target_is_left_alone(void **state)
{
    (void)state;
    const char *target = in_root("target"), *link = in_root("link");
    assert_int_equal(tr_file_write_atomic(target, "precious", 8), TR_OK);
    assert_int_equal(symlink(target, link), 0);
    assert_content(link, "precious"); /* reading follows */
    assert_int_equal(tr_file_write_atomic(link, "new", 3), TR_OK);
    assert_content(link, "new");
    assert_content(target, "precious");
}

static void mkdirs_makes_parents_and_is_repeatable(void **state)
{
    (void)state;
    const char *deep = in_root("x//y/z/");
    assert_int_equal(tr_mkdirs(deep), TR_OK);
    assert_int_equal(tr_mkdirs(deep), TR_OK);
    assert_true(tr_dir_exists(in_root("x/y/z")));
    assert_false(tr_file_exists(in_root("x/y/z")));
    assert_int_equal(tr_file_write_atomic(in_root("x/file"), "f", 1), TR_OK);
    assert_int_equal(tr_mkdirs(in_root("x/file")), TR_USAGE);
    assert_int_equal(tr_mkdirs(in_root("x/file/below")), TR_USAGE);
    assert_int_equal(tr_mkdirs(""), TR_USAGE);
    assert_int_equal(tr_mkdirs("/"), TR_OK);
}

static void remove_tree_never_follows_links(void **state)
{
    (void)state;
    assert_int_equal(tr_mkdirs(in_root("keep")), TR_OK);
    assert_int_equal(tr_file_write_atomic(in_root("keep/f"), "safe", 4), TR_OK);
    assert_int_equal(tr_mkdirs(in_root("gone/a/b")), TR_OK);
    assert_int_equal(tr_file_write_atomic(in_root("gone/a/f"), "x", 1), TR_OK);
    assert_int_equal(symlink(in_root("keep"), in_root("gone/a/link")), 0);
    assert_int_equal(symlink(in_root("keep"), in_root("toplink")), 0);
    assert_int_equal(tr_remove_tree(in_root("gone")), TR_OK);
    assert_int_equal(tr_remove_tree(in_root("toplink")), TR_OK);
    assert_false(tr_dir_exists(in_root("gone")) || tr_dir_exists(in_root("toplink")));
    assert_content(in_root("keep/f"), "safe");
    assert_int_equal(tr_remove_tree(in_root("gone")), TR_OK); /* absent is fine */
}

/* What lies outside is a directory with a file in it; a link to it, to the file, or to nothing stands in the way. */
static void nothing_is_made_through_a_link(void **state)
{
    static const char *const targets[] = { "outside", "outside/f", "outside/absent" };
    (void)state;
    int fd = -1;
    assert_int_equal(tr_mkdirs(in_root("outside")), TR_OK);
    assert_int_equal(tr_file_write_atomic(in_root("outside/f"), "safe", 4), TR_OK);
    for (size_t i = 0; i < TR_COUNT_OF(targets); i++) {
        assert_int_equal(tr_mkdirs(in_root("out")), TR_OK);
        assert_int_equal(symlink(in_root(targets[i]), in_root("out/a")), 0);
        const char *out = in_root("out");
        assert_int_equal(tr_out_check(out, "a"), TR_USAGE);
        assert_int_equal(tr_out_check(out, "a/b"), TR_USAGE);
        assert_non_null(strstr(tr_error_text(), "out/a is a link"));
        assert_int_equal(tr_out_check(out, "absent/b"), TR_OK);
        assert_int_equal(tr_out_mkdir(out, "a"), TR_USAGE);
        assert_int_equal(tr_out_mkdir(out, "a/b"), TR_USAGE);
        assert_int_equal(tr_out_open(out, "a", TR_OUT_NEW, &fd), TR_USAGE);
        for (int how = TR_OUT_NEW; how <= TR_OUT_SHARE; how++)
            assert_int_equal(tr_out_open(out, "a/b", (enum tr_out)how, &fd), TR_USAGE);
        assert_int_equal(tr_out_open(out, "a", TR_OUT_APPEND, &fd), TR_USAGE);
        assert_int_equal(tr_out_open(out, "a", TR_OUT_SHARE, &fd), TR_USAGE);
        assert_int_equal(tr_out_write(out, "a/f", "bad", 3), TR_USAGE);
        assert_int_equal(tr_out_write_lazily(out, "a/f", "bad", 3), TR_USAGE);
        assert_int_equal(tr_out_remove(out, "a/f"), TR_USAGE);
        assert_int_not_equal(tr_out_unlink(out, "a/f"), 0);
        assert_int_not_equal(tr_out_move(out, "a/f", "g", TR_OUT_RENAME), 0);
        assert_int_equal(tr_out_signal_open(out, "a/b"), -1);
        fd = tr_out_signal_open(out, "a"); /* a new file in place of the link */
        assert_true(fd >= 0);
        close(fd);
        assert_content(in_root("out/a"), "");
        assert_int_equal(tr_remove_tree(in_root("out")), TR_OK);
    }
    assert_content(in_root("outside/f"), "safe");
    assert_false(tr_file_exists(in_root("outside/absent")) || tr_file_exists(in_root("outside/b")));
    assert_int_equal(symlink(in_root("outside"), in_root("chosen")), 0); /* the directory itself may be a link */
    assert_int_equal(tr_out_write(in_root("chosen"), "g", "new", 3), TR_OK);
    assert_content(in_root("outside/g"), "new");
}

static void a_name_that_is_none_is_refused(void **state)
{
    static const char *const bad[] = { "", ".", "..", "a\nb", "\033[2J", "../a", "a/../b", "a//b", "/a", "a/" };
    char longest[400];
    int fd = -1;
    (void)state;
    assert_int_equal(tr_out_mkdir(root, "a"), TR_OK);
    memset(longest, 'x', sizeof longest);
    longest[300] = 0;
    for (size_t i = 0; i <= TR_COUNT_OF(bad); i++) {
        const char *name = i < TR_COUNT_OF(bad) ? bad[i] : longest;
        for (int how = TR_OUT_NEW; how <= TR_OUT_SHARE; how++)
            assert_int_equal(tr_out_open(root, name, (enum tr_out)how, &fd), TR_USAGE);
        if (!strstr(tr_error_text(), "is no name for a file in "))
            fail_msg("%zu: %s", i, tr_error_text());
        assert_null(strchr(tr_error_text(), '\033'));
        assert_int_equal(tr_out_write(root, name, "x", 1), TR_USAGE);
        assert_int_equal(tr_out_mkdir(root, name), TR_USAGE);
        assert_int_equal(tr_out_check(root, name), TR_USAGE);
        assert_int_equal(tr_out_remove(root, name), TR_USAGE);
        assert_int_not_equal(tr_out_unlink(root, name), 0);
    }
}

static void a_file_with_a_second_name_is_not_written_on(void **state)
{
    int fd = -1;
    (void)state;
    assert_int_equal(tr_file_write_atomic(in_root("first"), "safe", 4), TR_OK);
    assert_int_equal(link(in_root("first"), in_root("second")), 0);
    assert_int_equal(tr_out_open(root, "second", TR_OUT_APPEND, &fd), TR_USAGE);
    assert_int_equal(tr_out_open(root, "second", TR_OUT_SHARE, &fd), TR_USAGE);
    assert_int_equal(mkfifo(in_root("pipe"), 0600), 0);
    assert_int_equal(tr_out_open(root, "pipe", TR_OUT_SHARE, &fd), TR_USAGE); /* and does not wait */
    assert_int_equal(tr_out_write(root, "pipe", "new", 3), TR_USAGE);
    assert_int_equal(tr_out_move(root, "second", "pipe", TR_OUT_RENAME), EEXIST); /* nor is a device replaced */
    assert_int_equal(tr_out_write(root, "second", "new", 3), TR_OK); /* replaced: the first name keeps its own */
    assert_content(in_root("first"), "safe");
}

static void names_are_moved_exchanged_and_linked_beneath(void **state)
{
    (void)state;
    assert_int_equal(tr_mkdirs(in_root("m")), TR_OK);
    const char *m = in_root("m");
    assert_int_equal(tr_out_mkdir(m, "a/b"), TR_OK);
    assert_int_equal(tr_out_mkdir(m, "a/b"), TR_OK);
    assert_int_equal(tr_out_write(m, "a/b/f", "1", 1), TR_OK);
    assert_int_equal(tr_out_move(m, "a/b/f", "g", TR_OUT_RENAME), 0);
    assert_int_equal(tr_out_write_lazily(m, "h", "1", 1), TR_OK);
    assert_int_equal(tr_out_write_lazily(m, "h", "2", 1), TR_OK);
    assert_int_equal(tr_out_move(m, "g", "h", TR_OUT_EXCHANGE), 0);
    assert_content(in_root("m/g"), "2");
    assert_int_equal(tr_out_move(m, "g", "i", TR_OUT_LINK), 0);
    assert_int_equal(tr_out_move(m, "g", "i", TR_OUT_LINK), EEXIST);
    assert_int_equal(tr_out_unlink(m, "i"), 0);
    assert_int_equal(tr_out_unlink(m, "i"), ENOENT);
    assert_int_equal(tr_out_remove(m, "a"), TR_OK);
    assert_int_equal(tr_out_remove(m, "a/b/c"), TR_OK); /* absent is fine */
    assert_int_equal(tr_out_mkdir(m, "g"), TR_USAGE);   /* a file */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths_join_with_one_slash_and_a_limit),
        cmocka_unit_test(plain_names_cannot_leave_their_directory),
        cmocka_unit_test(read_is_bounded_and_for_regular_files),
        cmocka_unit_test(pread_names_the_end_it_hit),
        cmocka_unit_test(write_all_survives_short_writes),
        cmocka_unit_test(a_failed_write_keeps_the_old_content_and_no_leftover),
        cmocka_unit_test(a_killed_write_leaves_the_old_or_the_new_content),
        cmocka_unit_test(a_link_is_replaced_and_its_target_is_left_alone),
        cmocka_unit_test(mkdirs_makes_parents_and_is_repeatable),
        cmocka_unit_test(remove_tree_never_follows_links),
        cmocka_unit_test(nothing_is_made_through_a_link),
        cmocka_unit_test(a_name_that_is_none_is_refused),
        cmocka_unit_test(a_file_with_a_second_name_is_not_written_on),
        cmocka_unit_test(names_are_moved_exchanged_and_linked_beneath),
    };
    return cmocka_run_group_tests(tests, make_root, drop_root);
}
