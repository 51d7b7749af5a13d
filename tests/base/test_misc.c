/* Hash, clock, failpoints. */
#include "base/base.h"
#include <stdlib.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static void hash_gives_the_reference_values(void **state)
{
    (void)state;
    char hex[33];
    tr_hash_hex(tr_hash("", 0), hex); /* XXH3-128 of nothing, seed 0 */
    assert_string_equal(hex, "99aa06d3014798d86001c324468d497f");
    tr_hash_hex(tr_hash(NULL, 0), hex);
    assert_string_equal(hex, "99aa06d3014798d86001c324468d497f");
}

static void streaming_equals_one_shot_for_any_cut(void **state)
{
    (void)state;
    unsigned char data[3000];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 7 + i / 256);
    struct tr_hasher *h = NULL;
    assert_int_equal(tr_hasher_open(&h), TR_OK);
    struct tr_hash128 whole = tr_hash(data, sizeof data);
    for (size_t cut = 0; cut <= sizeof data; cut += 61) {
        tr_hasher_clear(h);
        tr_hasher_add(h, data, cut);
        tr_hasher_add(h, data + cut, sizeof data - cut);
        assert_true(tr_hash_eq(tr_hasher_get(h), whole));
    }
    data[1234] ^= 1;
    assert_false(tr_hash_eq(tr_hash(data, sizeof data), whole));
    tr_hasher_close(h);
    tr_hasher_close(NULL);
}

static void clocks_move_forward(void **state)
{
    (void)state;
    int64_t a = tr_clock_us();
    usleep(2000);
    assert_true(tr_clock_us() - a >= 2000);
    assert_true(tr_clock_wall() > 1.6e9);
}

static void only_the_armed_hit_of_the_armed_rank_fails(void **state)
{
    (void)state;
    assert_int_equal(tr_failpoint("a"), TR_OK);
    assert_int_equal(tr_failpoint_setup("a:error:2,b:error:1:3,c:error:1:4", 3), TR_OK);
    assert_int_equal(tr_failpoint("a"), TR_OK);
    assert_int_equal(tr_failpoint("a"), TR_IO);
    assert_non_null(strstr(tr_error_text(), "failpoint a"));
    assert_int_equal(tr_failpoint("a"), TR_OK);
    assert_int_equal(tr_failpoint("b"), TR_IO);
    assert_int_equal(tr_failpoint("c"), TR_OK);
    setenv("TR_GENERATION", "2", 1);
    assert_int_equal(tr_failpoint_setup("a:error:1:3:2,b:error:1:3:1", 3), TR_OK);
    unsetenv("TR_GENERATION");
    assert_int_equal(tr_failpoint("a"), TR_IO);
    assert_int_equal(tr_failpoint("b"), TR_OK); /* armed for another generation */
    assert_int_equal(tr_failpoint_setup("", 3), TR_OK);
    assert_int_equal(tr_failpoint("b"), TR_OK);
}

static void delay_waits(void **state)
{
    (void)state;
    assert_int_equal(tr_failpoint_setup("slow:delay20", 0), TR_OK);
    int64_t a = tr_clock_us();
    assert_int_equal(tr_failpoint("slow"), TR_OK);
    assert_true(tr_clock_us() - a >= 20000);
    assert_int_equal(tr_failpoint_setup("", 0), TR_OK);
}

static void what_is_passed_is_told_every_time(void **state)
{
    (void)state;
    char text[64] = "";
    int pipe_fds[2], old = dup(STDERR_FILENO);
    assert_int_equal(pipe(pipe_fds), 0);
    assert_int_equal(tr_failpoint_setup("*:tell", 3), TR_OK);
    assert_int_equal(dup2(pipe_fds[1], STDERR_FILENO), STDERR_FILENO);
    enum tr_status a = tr_failpoint("a.b"), b = tr_failpoint("c"), c = tr_failpoint("a.b");
    assert_int_equal(dup2(old, STDERR_FILENO), STDERR_FILENO);
    close(old);
    close(pipe_fds[1]);
    assert_true(a == TR_OK && b == TR_OK && c == TR_OK);
    assert_true(read(pipe_fds[0], text, sizeof text - 1) > 0);
    close(pipe_fds[0]);
    assert_string_equal(text, "passed a.b\npassed c\npassed a.b\n");
    assert_int_equal(tr_failpoint_setup("", 3), TR_OK);
}

/* The child arms TR_FAIL itself, so the environment path is the one that is tested. */
static pid_t hit_in_child(const char *spec)
{
    pid_t pid = fork();
    if (pid == 0) {
        setenv("TR_FAIL", spec, 1);
        if (tr_failpoint_setup(NULL, 0) != TR_OK)
            _exit(9);
        (void)tr_failpoint("here");
        _exit(0);
    }
    return pid;
}

static void kill_and_stop_hit_the_process(void **state)
{
    (void)state;
    int status = 0;
    pid_t pid = hit_in_child("here:kill");
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    pid = hit_in_child("here:stop");
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFSTOPPED(status));
    kill(pid, SIGCONT);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Two that spin on one core each stand in its queue while the other runs; one that sleeps does neither. */
static void who_waits_for_a_core_is_told_from_who_sleeps(void **state)
{
    (void)state;
    pid_t pids[3];
    struct tr_cores_us cores[3];
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    for (int i = 0; i < 3; i++)
        if ((pids[i] = fork()) == 0) {
            (void)sched_setaffinity(0, sizeof one, &one);
            volatile bool spins = i < 2;
            while (spins)
                ;
            pause();
            _exit(0);
        }
    for (int tries = 0; tries < 200; tries++) { /* as long as other work on the machine makes it take, 20 s at most */
        usleep(100 * 1000);
        for (int i = 0; i < 3; i++)
            cores[i] = tr_process_cores(pids[i]);
        if (cores[0].ran > 20000 && cores[0].queued > 20000 && cores[1].queued > 20000)
            break;
    }
    for (int i = 0; i < 3; i++) {
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
    }
    assert_true(cores[0].ran > 20000 && cores[0].queued > 20000 && cores[1].queued > 20000);
    assert_true(cores[2].ran < 20000);
    assert_true(tr_process_cores(pids[0]).ran == 0);
}

static void bad_specs_are_refused_and_arm_nothing(void **state)
{
    (void)state;
    static const char *const bad[] = { "a",         "a:",           ":kill",   "a:explode", "a:error:0",
                                       "a:error:x", "a:error:1:-2", "a:delay", "a:delay-5", "a:error:1:0:0:0",
                                       "a:error,",  "a:error,b" };
    for (size_t i = 0; i < TR_COUNT_OF(bad); i++) {
        assert_int_equal(tr_failpoint_setup(bad[i], 0), TR_USAGE);
        assert_non_null(strstr(tr_error_text(), "TR_FAIL="));
        assert_int_equal(tr_failpoint("a"), TR_OK);
    }
}

static void assert_hex(const unsigned char got[TR_SHA256_BYTES], const char *want)
{
    char hex[2 * TR_SHA256_BYTES + 1];
    for (int i = 0; i < TR_SHA256_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", got[i]);
    assert_string_equal(hex, want);
}

/* FIPS 180-4 examples; RFC 4231 cases 2 and 6. */
static void sha256_and_hmac_give_the_published_values(void **state)
{
    (void)state;
    static const char two[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    static const char cases[] = "Test Using Larger Than Block-Size Key - Hash Key First";
    unsigned char out[TR_SHA256_BYTES], key[131];
    tr_sha256("", 0, out);
    assert_hex(out, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    tr_sha256("abc", 3, out);
    assert_hex(out, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    tr_sha256(two, sizeof two - 1, out);
    assert_hex(out, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    const struct tr_bytes parts[] = { { "what do ya want ", 16 }, { "for nothing?", 12 } };
    tr_hmac_sha256("Jefe", 4, parts, 2, out);
    assert_hex(out, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof key);
    const struct tr_bytes one = { cases, sizeof cases - 1 };
    tr_hmac_sha256(key, sizeof key, &one, 1, out);
    assert_hex(out, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    assert_true(tr_same_bytes("abc", "abd", 2));
    assert_false(tr_same_bytes("abc", "abd", 3));
}

static void a_slow_action_is_told_beside_the_p99_of_the_others(void **state)
{
    static struct tr_phase_page page;
    const int64_t slow_us = 100000000;
    (void)state;
    tr_phase_use(&page);
    tr_phase_step(3);
    for (int i = 0; i < 40; i++)
        tr_phase_enter(TR_PHASE_FORWARD, i, 0);
    page.begin_us -= slow_us; /* instead of a sleep */
    tr_phase_enter(TR_PHASE_BACKWARD, 0, 0);
    tr_phase_step(4);
    tr_phase_use(NULL);
    assert_int_equal(page.n_slow, 1);
    assert_int_equal(page.slow_step, 3);
    assert_int_equal(page.slow_place, 39);
    assert_true(page.slow_us >= slow_us && page.slow_p99_us > 0 && page.slow_p99_us < slow_us / 8);
    assert_true(tr_phase_p99(&page, TR_PHASE_FORWARD) >= slow_us); /* which counts the slow one too */
}

/* Work: a scope narrows what the thread may do, what is taken inside is gone outside, and a file's account is of all.
 */
static void work_is_counted_inside_and_outside(void **state)
{
    (void)state;
    struct tr_work file = { .n_bytes = 10 };
    assert_true(tr_work_left() == INT64_MAX && tr_work_take(INT64_MAX));
    struct tr_work_scope record = tr_work_record(100), text = tr_work_enter(1000);
    assert_true(tr_work_take(600) && tr_work_left() == 400);
    assert_false(tr_work_take(401));
    assert_int_equal(tr_work_left(), 0);
    assert_int_equal(tr_work_leave(text), 1000);
    assert_int_equal(tr_work_left(), TR_WORK_RECORD + 100 * TR_WORK_BYTE - 1000);
    text = tr_work_enter(INT64_MAX);
    assert_int_equal(tr_work_leave(text), 0);
    tr_work_book(&file, record);
    assert_true(tr_work_left() == INT64_MAX && file.n_used == 1000);
    assert_int_equal(tr_work_check(&file), TR_OK);
    file.n_used = TR_WORK_FILE + 10 * TR_WORK_BYTE;
    assert_int_equal(tr_work_check(&file), TR_OK);
    file.n_used++;
    assert_int_equal(tr_work_check(&file), TR_USAGE);
    assert_true(tr_work_of(7, 3, 5) == 22 && tr_work_of(7, 200, UINT64_MAX) < INT64_MAX);
}

static void a_growing_array_keeps_its_elements(void **state)
{
    (void)state;
    int *p = NULL;
    size_t n_cap = 0;
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(TR_ROOM(p, (size_t)i + 1, &n_cap, "numbers"), TR_OK);
        assert_true(n_cap > (size_t)i);
        p[i] = i;
    }
    for (int i = 0; i < 1000; i++)
        assert_int_equal(p[i], i);
    assert_int_equal(TR_ROOM(p, 5000, &n_cap, "numbers"), TR_OK); /* more than twice as many at once */
    assert_true(n_cap >= 5000);
    const int *old = p;
    size_t old_cap = n_cap;
    assert_int_equal(TR_ROOM(p, SIZE_MAX / 2, &n_cap, "%d numbers", 7), TR_NOMEM); /* more bytes than a size_t counts */
    assert_string_equal(tr_error_text(), "no memory for 7 numbers");
    assert_ptr_equal(p, old);
    assert_int_equal(n_cap, old_cap);
    free(p);
}

static void an_array_is_zeroed_or_says_what_has_no_memory(void **state)
{
    (void)state;
    int64_t *p = NULL;
    assert_int_equal(TR_ALLOC(p, 3, "%d numbers", 3), TR_OK);
    assert_true(p[0] == 0 && p[1] == 0 && p[2] == 0);
    const int64_t *old = p;
    volatile size_t n = SIZE_MAX / 2; /* more bytes than a size_t counts */
    assert_int_equal(TR_ALLOC(p, n, "the rows of %s", "a.json"), TR_NOMEM);
    assert_string_equal(tr_error_text(), "no memory for the rows of a.json");
    assert_ptr_equal(p, old);
    free(p);
    assert_int_equal(TR_ALLOC(p, 0, "nothing"), TR_OK);
    assert_non_null(p);
    free(p);
}

static void rows_are_found_and_sorted_by_the_text_they_begin_with(void **state)
{
    (void)state;
    struct row {
        const char *name;
        int value;
    } rows[] = { { "b", 1 }, { "c", 2 }, { "a", 3 }, { "b", 4 } };
    static const char *const words[] = { "x", "", "y" };
    double number[] = { 2, -1, 1e300, 0 };
    const struct row *found = TR_ROW(rows, "b");
    assert_ptr_equal(found, &rows[0]); /* the first of equal ones */
    assert_null(TR_ROW(rows, "d"));
    assert_ptr_equal(TR_ROW(words, ""), &words[1]);
    assert_null(tr_row_find(NULL, 0, sizeof(char *), "x"));
    qsort(rows, TR_COUNT_OF(rows), sizeof *rows, tr_by_text);
    assert_int_equal(rows[0].value, 3);
    assert_int_equal(rows[3].value, 2);
    qsort(number, TR_COUNT_OF(number), sizeof *number, tr_by_double);
    assert_true(number[0] == -1 && number[1] == 0 && number[2] == 2 && number[3] == 1e300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_and_hmac_give_the_published_values),
        cmocka_unit_test(hash_gives_the_reference_values),
        cmocka_unit_test(streaming_equals_one_shot_for_any_cut),
        cmocka_unit_test(clocks_move_forward),
        cmocka_unit_test(only_the_armed_hit_of_the_armed_rank_fails),
        cmocka_unit_test(delay_waits),
        cmocka_unit_test(what_is_passed_is_told_every_time),
        cmocka_unit_test(kill_and_stop_hit_the_process),
        cmocka_unit_test(who_waits_for_a_core_is_told_from_who_sleeps),
        cmocka_unit_test(bad_specs_are_refused_and_arm_nothing),
        cmocka_unit_test(work_is_counted_inside_and_outside),
        cmocka_unit_test(a_slow_action_is_told_beside_the_p99_of_the_others),
        cmocka_unit_test(a_growing_array_keeps_its_elements),
        cmocka_unit_test(an_array_is_zeroed_or_says_what_has_no_memory),
        cmocka_unit_test(rows_are_found_and_sorted_by_the_text_they_begin_with),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
