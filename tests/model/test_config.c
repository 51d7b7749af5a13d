/* config.json is accounted for key by key: what is not implemented is refused by name, hostile values never reach a
 * size. */
#include "base/base.h"
#include "model/model.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define LLAMA                                                                                                          \
    "\"model_type\":\"llama\",\"vocab_size\":64,\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":2,"  \
    "\"num_attention_heads\":4"

#define DECODER(type)                                                                                                  \
    "\"model_type\":\"" type "\",\"vocab_size\":64,\"hidden_size\":32,\"intermediate_size\":48,"                       \
    "\"num_hidden_layers\":2,\"num_attention_heads\":4"
#define FALCON                                                                                                         \
    "\"model_type\":\"falcon\",\"vocab_size\":64,\"hidden_size\":32,\"num_hidden_layers\":2,\"num_attention_heads\":4"

static enum tr_status open_text(const char *text, struct tr_model **out)
{
    cJSON *j = NULL;
    struct tr_model_options opt = { .rows = 2, .sequence_length = 8, .dropout = -1 };
    enum tr_status st = tr_json_parse(text, strlen(text), "config.json", &j);
    if (st == TR_OK)
        st = tr_model_from_json(j, &opt, out);
    if (st != TR_OK)
        cJSON_Delete(j);
    return st;
}

static const struct {
    const char *text, *says;
} refused[] = {
    { "{}", "model_type" },
    { "{\"model_type\":\"mamba\"}", "\"mamba\" is not implemented" },
    { "{\"model_type\":\"llama\"}", "vocab_size" },
    { "{\"model_type\":\"llava\",\"text_config\":{\"model_type\":\"llama\"},\"vision_config\":{}}",
      "a text model of type llama" },
    { "{\"model_type\":\"gemma3\",\"text_config\":{\"mixture\":2}}", "mixture" },
    { "{\"model_type\":\"mistral3\",\"text_config\":{\"model_type\":\"ministral3\"}}",
      "the text model of mistral3 is \"ministral3\"; only mistral is implemented" },
    { "{\"model_type\":\"qwen2_5_vl\",\"vision_config\":{}}", "vocab_size" },
    { "{" LLAMA ",\"attention_sinks\":true}", "attention_sinks" },
    { "{" LLAMA ",\"auto_map\":{}}", "auto_map" },
    { "{" LLAMA ",\"num_key_value_heads\":3}", "does not divide" },
    { "{" LLAMA ",\"head_dim\":0}", "head_dim" },
    { "{" LLAMA ",\"hidden_act\":\"mish\"}", "mish" },
    { "{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"longrope\"}}", "short_factor of longrope has 0 numbers" },
    { "{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,1,1,1],\"long_factor\":[1,2,0,1]}}",
      "long_factor[2]" },
    { "{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"ntk\"}}", "ntk" },
    { "{\"model_type\":\"phi3\",\"vocab_size\":64,\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":2,"
      "\"num_attention_heads\":4,\"partial_rotary_factor\":0.4}",
      "3 rotary columns of a head of 8" },
    { "{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"linear\"}}", "factor" },
    { "{" LLAMA ",\"partial_rotary_factor\":0.5,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2}}",
      "partial_rotary_factor" },
    { "{\"model_type\":\"smollm3\",\"vocab_size\":64,\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":"
      "2,"
      "\"num_attention_heads\":4,\"no_rope_layers\":[1]}",
      "no_rope_layers" },
    { "{\"model_type\":\"granite\",\"vocab_size\":64,\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":"
      "2,"
      "\"num_attention_heads\":4,\"logits_scaling\":0}",
      "logits_scaling" },
    { "{" LLAMA ",\"head_dim\":7}", "a head of 7 cannot rotate" },
    { "{" LLAMA ",\"rope_theta\":-1,\"rope_scaling\":{\"type\":\"default\"}}", "positive" },
    { "{" LLAMA ",\"rope_theta\":0}", "rope_theta 0 must be positive" },
    { "{" LLAMA ",\"rope_theta\":-5}", "rope_theta -5 must be positive" },
    { "{" LLAMA ",\"rms_norm_eps\":-1e-5}", "epsilon" },
    { "{" LLAMA ",\"initializer_range\":-1}", "initializer_range" },
    { "{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
      "\"high_freq_factor\":1}}",
      "high_freq_factor" },
    { "{" LLAMA ",\"layer_types\":[\"full_attention\"]}", "layer_types" },
    { "{" LLAMA ",\"layer_types\":[\"full_attention\",\"chunked_attention\"]}", "chunked_attention" },
    { "{" LLAMA ",\"attention_dropout\":1.5}", "dropout" },
    { "{\"model_type\":\"llama\",\"vocab_size\":1099511627776,\"hidden_size\":32,\"intermediate_size\":48,"
      "\"num_hidden_layers\":2,\"num_attention_heads\":4}",
      "vocab_size" },
    { "{\"model_type\":\"llama\",\"vocab_size\":64,\"hidden_size\":0,\"intermediate_size\":48,\"num_hidden_layers\":2,"
      "\"num_attention_heads\":4}",
      "hidden_size" },
    { "{\"model_type\":\"llama\",\"vocab_size\":64,\"hidden_size\":32,\"intermediate_size\":48,"
      "\"num_hidden_layers\":1000000000,\"num_attention_heads\":4}",
      "num_hidden_layers" },
    { "{\"model_type\":\"gpt2\",\"vocab_size\":64,\"n_embd\":32,\"n_layer\":2,\"n_head\":5}", "n_head 5" },
    { "{\"model_type\":\"gpt2\",\"vocab_size\":64,\"n_embd\":32,\"n_layer\":2,\"n_head\":4,\"n_positions\":4}",
      "learned positions" },
    { "{\"model_type\":\"gpt2\",\"vocab_size\":64,\"n_embd\":32,\"n_layer\":2,\"n_head\":4,"
      "\"scale_attn_by_inverse_layer_idx\":true}",
      "scale_attn_by_inverse_layer_idx" },
    { "{\"model_type\":\"opt\",\"vocab_size\":64,\"hidden_size\":32,\"ffn_dim\":64,\"num_hidden_layers\":2,"
      "\"num_attention_heads\":4,\"word_embed_proj_dim\":0}",
      "word_embed_proj_dim" },
    { "{" FALCON ",\"alibi\":true}", "alibi = true is not implemented" },
    { "{" FALCON ",\"num_key_value_heads\":2}", "num_key_value_heads" },
    { "{" FALCON ",\"new_decoder_architecture\":true,\"num_kv_heads\":3}", "num_kv_heads 3" },
    { "{" FALCON ",\"multi_query\":false,\"num_kv_heads\":2}", "num_kv_heads 2" },
    { "{" FALCON ",\"new_decoder_architecture\":true,\"parallel_attn\":false}", "parallel_attn false" },
    { "{" FALCON ",\"num_ln_in_parallel_attn\":2}", "num_ln_in_parallel_attn 2" },
    { "{" FALCON ",\"parallel_attn\":false,\"attention_dropout\":0.1}", "attention_dropout 0.1" },
    { "{" DECODER("gpt_neox") ",\"rope_theta\":10000}", "rope_theta" },
    { "{" DECODER("gpt_neox") ",\"rotary_pct\":0.1}", "rotary columns" },
    { "{" DECODER("gpt_neox") ",\"rotary_pct\":1.5}", "rotary_pct 1.5" },
    { "{" DECODER("stablelm") ",\"qk_layernorm\":true}", "qk_layernorm = true is not implemented" },
    { "{" DECODER("stablelm") ",\"attention_bias\":true}", "attention_bias" },
    { "{" DECODER("cohere") ",\"use_qk_norm\":true}", "use_qk_norm = true is not implemented" },
    { "{" DECODER("cohere2") ",\"sliding_window\":null}", "sliding_window null" },
    { "{" DECODER("starcoder2") ",\"attention_bias\":true}", "attention_bias" },
    { "{" DECODER("glm4") ",\"sliding_window\":4}", "sliding_window" },
};

static void what_is_not_implemented_is_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(refused); i++) {
        struct tr_model *m = NULL;
        assert_int_equal(open_text(refused[i].text, &m), TR_USAGE);
        if (!strstr(tr_error_text(), refused[i].says))
            fail_msg("case %zu: \"%s\" does not name \"%s\"", i, tr_error_text(), refused[i].says);
    }
}

/* Keys of published files that change nothing: SmolLM2, GPT-2 medium and XL, Qwen 2.5, Mistral, OPT. */
static const struct {
    const char *text, *odd;
} published[] = {
    { "{" LLAMA ",\"is_llama_config\":true,\"rope_interleaved\":false,\"transformers.js_config\":{\"dtype\":\"q4\"}",
      "rope_interleave" },
    { "{\"model_type\":\"gpt2\",\"vocab_size\":64,\"n_embd\":32,\"n_layer\":2,\"n_head\":4,\"n_positions\":16,\"n_"
      "special\":0,"
      "\"predict_special_tokens\":true,\"output_past\":true,\"_num_labels\":1",
      "n_specials" },
    { "{\"model_type\":\"qwen2\",\"vocab_size\":64,\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":2,"
      "\"num_attention_heads\":4,\"use_mrope\":false",
      "dual_chunk_attention_config" },
    { "{\"model_type\":\"mistral\",\"vocab_size\":64,\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":"
      "2,"
      "\"num_attention_heads\":4,\"sliding_window\":null,\"mlp_bias\":false,\"_flash_attn_2_enabled\":true",
      "use_mrope" },
};

static void keys_without_effect_do_not_stop_a_model(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(published); i++) {
        struct tr_model *m = NULL;
        char text[1024];
        (void)snprintf(text, sizeof text, "%s}", published[i].text);
        if (open_text(text, &m) != TR_OK)
            fail_msg("%s", tr_error_text());
        tr_model_close(m);
        (void)snprintf(text, sizeof text, "%s,\"%s\":1}", published[i].text, published[i].odd);
        assert_int_equal(open_text(text, &m), TR_USAGE);
        assert_non_null(strstr(tr_error_text(), published[i].odd));
    }
}

/* transformers rotates whole heads of a Llama whatever partial_rotary_factor says. */
static void llama_rotates_whole_heads(void **state)
{
    (void)state;
    struct tr_model *m = NULL;
    assert_int_equal(open_text("{" LLAMA ",\"partial_rotary_factor\":0.5}", &m), TR_OK);
    assert_int_equal(m->const_cols[TR_C_ROPE], 8);
    tr_model_close(m);
}

static void unknown_key_passes_when_the_user_vouches(void **state)
{
    (void)state;
    static const char text[] = "{" LLAMA ",\"my_note\":1}";
    static const char *const words[] = { "my_note" };
    cJSON *j = NULL;
    struct tr_model *m = NULL;
    struct tr_model_options opt = { .rows = 1, .sequence_length = 4, .ignore_keys = { words, 1 } };
    assert_int_equal(tr_json_parse(text, sizeof text - 1, "config.json", &j), TR_OK);
    assert_int_equal(tr_model_from_json(j, &opt, &m), TR_OK);
    tr_model_close(m);
}

/* alpha / sqrt(tokens of a row x columns), as transformers adds it: behind Gemma's factor, which is a part of its
 * embedding, and in front of Granite's. */
static void noise_on_embeddings_has_the_size_of_neftune(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double factor; /* behind the noise, which undoes it */
    } rows[] = {
        { "{" LLAMA "}", 1 },
        { "{\"model_type\":\"gemma2\",\"vocab_size\":64,\"hidden_size\":32,\"intermediate_size\":48,"
          "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":4,\"head_dim\":8}",
          5.656854249492381 },
        { "{\"model_type\":\"granite\",\"vocab_size\":64,\"hidden_size\":32,\"intermediate_size\":48,"
          "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"embedding_multiplier\":12}",
          1 },
    };
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++)
        for (int has_noise = 0; has_noise < 2; has_noise++) {
            cJSON *j = NULL;
            struct tr_model *m = NULL;
            struct tr_model_options opt = { .rows = 2, .sequence_length = 16, .dropout = -1, .noise = 5 * has_noise };
            assert_int_equal(tr_json_parse(rows[i].text, strlen(rows[i].text), "config.json", &j), TR_OK);
            assert_int_equal(tr_model_from_json(j, &opt, &m), TR_OK);
            const struct tr_program *p = m->program[m->segment[0].program];
            int n = 0;
            for (int k = 0; k < p->n_nodes; k++)
                if (p->node[k].op == TR_OP_NOISE) {
                    double want = 5 / sqrt(16 * 32) / rows[i].factor, got = (double)p->node[k].attr.scale;
                    assert_true(fabs(got - want) < 1e-6 * want);
                    n++;
                }
            assert_int_equal(n, has_noise);
            tr_model_close(m);
        }
}

static void tied_head_is_the_embedding(void **state)
{
    (void)state;
    struct tr_model *tied = NULL, *untied = NULL;
    assert_int_equal(open_text("{" LLAMA ",\"tie_word_embeddings\":true}", &tied), TR_OK);
    assert_int_equal(open_text("{" LLAMA "}", &untied), TR_OK);
    assert_int_equal(untied->n_params, tied->n_params + 1);
    assert_int_equal(untied->n_elements, tied->n_elements + 64 * 32);
    assert_int_equal(tied->segment[0].param[0], tied->segment[tied->n_segments - 1].param[1]);
    tr_model_close(tied);
    tr_model_close(untied);
}

/* A switch of something that is not there, and keys that a config.json may leave out. */
static void what_is_null_or_has_a_default_does_not_stop_a_model(void **state)
{
    (void)state;
    struct tr_model *m = NULL;
    assert_int_equal(open_text("{" DECODER("qwen2") ",\"dual_chunk_attention_config\":null}", &m), TR_OK);
    tr_model_close(m);
    m = NULL;
    assert_int_equal(open_text("{" DECODER("qwen2") ",\"dual_chunk_attention_config\":{\"chunk_size\":4}}", &m),
                     TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "dual_chunk_attention_config"));
    assert_int_equal(open_text("{" DECODER("qwen3") "}", &m), TR_OK);
    assert_int_equal(m->n_elements, 2 * 64 * 32 + 32 + 2 * (4 * 32 * 512 + 2 * 128 + 3 * 32 * 48 + 2 * 32));
    tr_model_close(m);
}

static void parameters_have_rules_and_decay(void **state)
{
    (void)state;
    struct tr_model *m = NULL;
    assert_int_equal(open_text("{" LLAMA ",\"attention_bias\":true}", &m), TR_OK);
    int seen = 0;
    for (int i = 0; i < m->n_params; i++) {
        const struct tr_param *p = &m->param[i];
        assert_int_equal(p->has_decay, p->n_dims == 2);
        if (strcmp(p->name, "model.layers.1.self_attn.q_proj.weight") == 0)
            assert_int_equal(p->split.dim, 0), seen++;
        if (strcmp(p->name, "model.layers.1.self_attn.q_proj.bias") == 0)
            assert_int_equal(p->split.dim, 0), seen++;
        if (strcmp(p->name, "model.layers.0.self_attn.o_proj.weight") == 0)
            assert_int_equal(p->split.dim, 1), seen++;
        if (strcmp(p->name, "model.layers.0.self_attn.o_proj.bias") == 0)
            assert_int_equal(p->split.dim, TR_WHOLE), seen++;
        if (strcmp(p->name, "model.norm.weight") == 0)
            assert_int_equal(p->split.dim, TR_WHOLE), seen++;
    }
    assert_int_equal(seen, 5);
    tr_model_close(m);
}

static void random_weights_do_not_depend_on_the_cut(void **state)
{
    (void)state;
    struct tr_model *m = NULL;
    float whole[64 * 32], parts[64 * 32];
    assert_int_equal(open_text("{" LLAMA "}", &m), TR_OK);
    tr_model_init_param(m, 0, 7, 0, 64 * 32, NULL, whole);
    for (int64_t at = 0; at < 64 * 32; at += 100)
        tr_model_init_param(m, 0, 7, at, tr_min64(100, 64 * 32 - at), NULL, parts + at);
    assert_memory_equal(whole, parts, sizeof whole);
    tr_model_close(m);
}

/* Windows of two layers: 0 is none. */
static void layers_have_the_windows_of_transformers(void **state)
{
    static const struct {
        const char *text;
        int64_t window[2];
    } cases[] = {
        { DECODER("mistral") ",\"sliding_window\":7", { 7, 7 } },
        { DECODER("mistral") ",\"sliding_window\":7,\"layer_types\":null", { 7, 7 } },
        { DECODER("mistral") ",\"sliding_window\":7,\"layer_types\":[\"full_attention\",\"sliding_attention\"]",
          { 0, 7 } },
        { DECODER("ministral") ",\"sliding_window\":7,\"layer_types\":[\"sliding_attention\",\"full_attention\"]",
          { 7, 0 } },
        { DECODER("ministral") ",\"sliding_window\":7", { 7, 7 } },
        { DECODER("smollm3") ",\"sliding_window\":7,\"no_rope_layers\":[0,1],\"use_sliding_window\":true", { 7, 0 } },
        { DECODER("smollm3") ",\"sliding_window\":7,\"no_rope_layers\":[0,1],\"use_sliding_window\":false", { 0, 0 } },
        { DECODER("smollm3") ",\"sliding_window\":7,\"layer_types\":[\"full_attention\",\"sliding_attention\"]",
          { 0, 7 } },
    };
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(cases); i++) {
        struct tr_model *m = NULL;
        char text[512];
        (void)snprintf(text, sizeof text, "{%s}", cases[i].text);
        if (open_text(text, &m) != TR_OK)
            fail_msg("%s", tr_error_text());
        for (int k = 0; k < 2; k++)
            if (m->hp.kind[m->hp.kind_of[k]].window != cases[i].window[k])
                fail_msg("case %zu: layer %d", i, k);
        tr_model_close(m);
    }
}

/* A head need not be hidden_size / num_attention_heads wide. */
static void heads_of_cohere_have_their_own_size(void **state)
{
    struct tr_model *m = NULL;
    (void)state;
    for (int i = 0; i < 2; i++) {
        const char *text = i ? "{" DECODER("cohere2") ",\"head_dim\":4,\"hidden_act\":\"gelu_python\"}"
                             : "{" DECODER("cohere") ",\"head_dim\":4,\"hidden_act\":\"gelu_accurate\"}";
        if (open_text(text, &m) != TR_OK)
            fail_msg("%s", tr_error_text());
        assert_int_equal(m->param[tr_model_param(m, "model.layers.1.self_attn.q_proj.weight")].dim[0], 16);
        tr_model_close(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_implemented_is_refused_by_name),
        cmocka_unit_test(keys_without_effect_do_not_stop_a_model),
        cmocka_unit_test(llama_rotates_whole_heads),
        cmocka_unit_test(layers_have_the_windows_of_transformers),
        cmocka_unit_test(heads_of_cohere_have_their_own_size),
        cmocka_unit_test(unknown_key_passes_when_the_user_vouches),
        cmocka_unit_test(noise_on_embeddings_has_the_size_of_neftune),
        cmocka_unit_test(tied_head_is_the_embedding),
        cmocka_unit_test(what_is_null_or_has_a_default_does_not_stop_a_model),
        cmocka_unit_test(parameters_have_rules_and_decay),
        cmocka_unit_test(random_weights_do_not_depend_on_the_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
