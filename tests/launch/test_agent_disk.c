/* Claims and keys on the shared disk: one winner a number, and no key that others can read (B9, H4). */
#include "launch/agent_disk.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static char dir[64];
static struct agent_disk disk;

static int set_up(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/claims-XXXXXX");
    return mkdtemp(dir) && tr_disk_open(dir, &disk) == TR_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    return tr_remove_tree(dir) == TR_OK ? 0 : -1;
}

static void a_number_is_claimed_once(void **state)
{
    (void)state;
    enum { CLAIMERS = 8, NUMBERS = 20 };
    int n_won = 0, status = 0;
    for (int i = 0; i < CLAIMERS; i++)
        if (fork() == 0) {
            int mine = 0;
            for (int g = 1; g <= NUMBERS; g++) {
                struct disk_view v = { .generation = g, .leader = (uint64_t)i + 1, .job = 9 };
                bool won = false;
                snprintf(v.addr, sizeof v.addr, "node%d:1", i);
                if (tr_disk_claim(&disk, &v, &won) != TR_OK)
                    _exit(255);
                mine += won;
            }
            _exit(mine);
        }
    for (int i = 0; i < CLAIMERS; i++) {
        assert_true(wait(&status) > 0 && WIFEXITED(status));
        assert_int_not_equal(WEXITSTATUS(status), 255);
        n_won += WEXITSTATUS(status);
    }
    assert_int_equal(n_won, NUMBERS);
    struct disk_view v = { 0 };
    tr_disk_beat(&disk, 41);
    tr_disk_beat(&disk, 42);
    tr_disk_read(&disk, &v);
    assert_int_equal(v.generation, NUMBERS);
    assert_int_equal(v.job, 9);
    assert_int_equal(v.beat, 42);
    assert_int_equal(strncmp(v.addr, "node", 4), 0);
    assert_int_equal(v.over_generation, 0);
    tr_disk_over(&disk, NUMBERS, 75);
    tr_disk_read(&disk, &v);
    assert_int_equal(v.over_generation, NUMBERS);
    assert_int_equal(v.over_code, 75);
}

static void one_key_is_made_and_found_by_all(void **state)
{
    (void)state;
    unsigned char a[TR_SHA256_BYTES], b[TR_SHA256_BYTES];
    char path[128];
    struct stat info;
    assert_int_equal(tr_key_from_disk(&disk, a), TR_OK);
    assert_int_equal(tr_key_from_disk(&disk, b), TR_OK);
    assert_memory_equal(a, b, sizeof a);
    snprintf(path, sizeof path, "%s/generations/key", dir);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(tr_key_from_disk(&disk, b), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "chmod 600"));
}

static void short_keys_links_and_directories_are_no_keys(void **state)
{
    (void)state;
    unsigned char a[TR_SHA256_BYTES];
    char path[128], link_path[128];
    snprintf(path, sizeof path, "%s/k", dir);
    snprintf(link_path, sizeof link_path, "%s/l", dir);
    assert_int_equal(tr_file_write_atomic(path, "short\n", 6), TR_OK);
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(tr_key_from_file(path, a), TR_USAGE);
    assert_int_equal(tr_file_write_atomic(path, "0123456789abcdef\n", 17), TR_OK);
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(tr_key_from_file(path, a), TR_OK);
    assert_int_equal(symlink(path, link_path), 0);
    assert_int_equal(tr_key_from_file(link_path, a), TR_USAGE);
    assert_int_equal(tr_key_from_file(dir, a), TR_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_number_is_claimed_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(one_key_is_made_and_found_by_all, set_up, tear_down),
        cmocka_unit_test_setup_teardown(short_keys_links_and_directories_are_no_keys, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
