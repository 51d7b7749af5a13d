/* The PMI-1 service: what MPICH asks is answered, a barrier holds until all are in it, and nothing a rank sends can
 * hurt. */
#include "launch/launch_impl.h"
#include "base/rng.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/banned.h"

static struct pmi *pmi;
static int end_of[3];

static int open_three(void **state)
{
    (void)state;
    assert_int_equal(tr_pmi_open(3, "0123456789abcdef", &pmi), TR_OK);
    for (int r = 0; r < 3; r++)
        assert_true((end_of[r] = tr_pmi_connect(pmi, r)) >= 0);
    return 0;
}

static int close_three(void **state)
{
    (void)state;
    for (int r = 0; r < 3; r++)
        close(end_of[r]);
    tr_pmi_close(pmi);
    return 0;
}

static void tell(int rank, const char *text)
{
    assert_int_equal(send(end_of[rank], text, strlen(text), 0), (int)strlen(text));
    tr_pmi_serve(pmi, rank);
}

/* What the rank hears now; "" = nothing, "closed" = the end. */
static const char *heard(int rank)
{
    static char text[4096];
    ssize_t n = recv(end_of[rank], text, sizeof text - 1, MSG_DONTWAIT);
    text[n > 0 ? n : 0] = 0;
    return n == 0 ? "closed" : text;
}

static void hears(int rank, const char *question, const char *want)
{
    tell(rank, question);
    assert_string_equal(heard(rank), want);
}

static void a_start_of_mpich_is_answered(void **state)
{
    (void)state;
    hears(0, "cmd=init pmi_version=1 pmi_subversion=1\n", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n");
    hears(0, "cmd=get_maxes\n", "cmd=maxes kvsname_max=64 keylen_max=64 vallen_max=1024\n");
    hears(0, "cmd=get_appnum\n", "cmd=appnum appnum=0\n");
    hears(0, "cmd=get_universe_size\n", "cmd=universe_size size=3\n");
    hears(0, "cmd=get_my_kvsname\n", "cmd=my_kvsname kvsname=trireme-0123456789abcdef\n");
    hears(0, "cmd=put kvsname=trireme-0123456789abcdef key=bc-0 value=a=b#c\n", "cmd=put_result rc=0 msg=success\n");
    hears(2, "cmd=get kvsname=trireme-0123456789abcdef key=bc-0\n", "cmd=get_result rc=0 msg=success value=a=b#c\n");
    hears(2, "cmd=get kvsname=trireme-0123456789abcdef key=bc-1\n",
          "cmd=get_result rc=-1 msg=key_not_found value=unknown\n");
    hears(1, "cmd=get kvsname=trireme-0123456789abcdef key=PMI_process_mapping\n",
          "cmd=get_result rc=0 msg=success value=(vector,(0,1,3))\n");
    hears(1, "cmd=finalize\n", "cmd=finalize_ack\n");
}

static void a_barrier_holds_until_all_are_in_it(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++) {
        hears(0, "cmd=barrier_in\n", "");
        hears(0, "cmd=barrier_in\n", ""); /* twice counts once */
        hears(2, "cmd=barrier_in\n", "");
        hears(1, "cmd=barrier_in\n", "cmd=barrier_out rc=0\n");
        assert_string_equal(heard(0), "cmd=barrier_out rc=0\n");
        assert_string_equal(heard(2), "cmd=barrier_out rc=0\n");
    }
}

static void halves_of_lines_and_several_at_once_are_read(void **state)
{
    (void)state;
    hears(0, "cmd=get_ap", "");
    hears(0, "pnum\ncmd=get_appnum\ncmd=fina", "cmd=appnum appnum=0\ncmd=appnum appnum=0\n");
    hears(0, "lize\n", "cmd=finalize_ack\n");
}

static void who_breaks_the_rules_is_cut_off_alone(void **state)
{
    (void)state;
    static const char *const bad[] = { "\n",
                                       "hello\n",
                                       "cmd=\n",
                                       "cmd=spawn nprocs=1000\n",
                                       "cmd=put kvsname=another key=a value=b\n",
                                       "cmd=get key=a\n" };
    for (size_t i = 0; i < TR_COUNT_OF(bad); i++) {
        hears(1, bad[i], "closed");
        assert_int_equal(tr_pmi_fd(pmi, 1), -1);
        close(end_of[1]);
        end_of[1] = tr_pmi_connect(pmi, 1);
    }
    char endless[3000];
    memset(endless, 'x', sizeof endless);
    (void)!send(end_of[1], endless, sizeof endless, MSG_DONTWAIT | MSG_NOSIGNAL);
    tr_pmi_serve(pmi, 1);
    assert_int_equal(tr_pmi_fd(pmi, 1), -1);
    hears(0, "cmd=get_appnum\n", "cmd=appnum appnum=0\n");
}

static void keys_and_the_table_are_bounded(void **state)
{
    (void)state;
    char line[2048], key[128];
    memset(key, 'k', sizeof key);
    (void)snprintf(line, sizeof line, "cmd=put kvsname=trireme-0123456789abcdef key=%.65s value=1\n", key);
    hears(0, line, "cmd=put_result rc=-1 msg=bad_key_or_value\n");
    for (int i = 0; i < 3 * 256; i++) {
        (void)snprintf(line, sizeof line, "cmd=put kvsname=trireme-0123456789abcdef key=%d value=1\n", i);
        hears(0, line, "cmd=put_result rc=0 msg=success\n");
    }
    hears(0, line, "cmd=put_result rc=-1 msg=duplicate_key\n");
    hears(0, "cmd=put kvsname=trireme-0123456789abcdef key=one-more value=1\n",
          "cmd=put_result rc=-1 msg=table_is_full\n");
    tr_pmi_clear(pmi);
    assert_int_equal(tr_pmi_fd(pmi, 0), -1);
}

/* Words of the protocol in any order, cut anywhere, with any bytes between them. */
static void random_lines_do_no_harm(void **state)
{
    (void)state;
    static const char *const words[] = { "cmd=",     "put", "get", "barrier_in", " kvsname=trireme-0123456789abcdef",
                                         " key=",    "a",   "=",   " value=",    "\n",
                                         "cmd=init", " ",   "bb",  "finalize",   "\n" };
    for (uint64_t i = 0; i < 20000; i++) {
        struct tr_philox x = tr_philox(5, 0, i);
        char text[256];
        size_t n = 0;
        for (uint32_t k = 0; k < 1 + x.v[0] % 12; k++) {
            struct tr_philox y = tr_philox(6, i, k);
            if (y.v[0] % 16 == 0)
                text[n++] = (char)y.v[1];
            else
                n += (size_t)snprintf(text + n, sizeof text - n, "%s", words[y.v[1] % TR_COUNT_OF(words)]);
        }
        int rank = (int)(x.v[1] % 3);
        (void)!send(end_of[rank], text, n, MSG_DONTWAIT | MSG_NOSIGNAL);
        tr_pmi_serve(pmi, rank);
        (void)heard(rank);
        if (tr_pmi_fd(pmi, rank) < 0) {
            close(end_of[rank]);
            end_of[rank] = tr_pmi_connect(pmi, rank);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_start_of_mpich_is_answered, open_three, close_three),
        cmocka_unit_test_setup_teardown(a_barrier_holds_until_all_are_in_it, open_three, close_three),
        cmocka_unit_test_setup_teardown(halves_of_lines_and_several_at_once_are_read, open_three, close_three),
        cmocka_unit_test_setup_teardown(who_breaks_the_rules_is_cut_off_alone, open_three, close_three),
        cmocka_unit_test_setup_teardown(keys_and_the_table_are_bounded, open_three, close_three),
        cmocka_unit_test_setup_teardown(random_lines_do_no_harm, open_three, close_three),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
