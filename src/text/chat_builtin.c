/* chat_builtin.c - chat templates for models that bring none, as Jinja text written for this program.
 *
 * Each template marks what the assistant writes, its end-of-turn token included, as {% generation %}, so that a mask
 * needs only one rendering. tests/golden/chat/builtin holds the same templates as files, with the text that jinja2
 * renders for them.
 */
#include "text/chat_impl.h"

#define TEXT                                                                                                           \
    "{%- macro text(c) -%}\n"                                                                                          \
    "    {%- if c is string -%}{{- c -}}\n"                                                                            \
    "    {%- elif c -%}{%- for part in c -%}{{- part.text -}}{%- endfor -%}\n"                                         \
    "    {%- endif -%}\n"                                                                                              \
    "{%- endmacro -%}\n"

/* The body of chatml, and of qwen, which puts a default system turn before it. */
#define CHATML                                                                                                         \
    "{%- for message in messages -%}\n"                                                                                \
    "    {{- '<|im_start|>' ~ message.role ~ '\\n' -}}\n"                                                              \
    "    {%- if message.role == 'assistant' -%}\n"                                                                     \
    "        {%- generation -%}{{- text(message.content) ~ '<|im_end|>' -}}{%- endgeneration -%}\n"                    \
    "    {%- else -%}\n"                                                                                               \
    "        {{- text(message.content) ~ '<|im_end|>' -}}\n"                                                           \
    "    {%- endif -%}\n"                                                                                              \
    "    {{- '\\n' -}}\n"                                                                                              \
    "{%- endfor -%}\n"                                                                                                 \
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}\n"

/* The body of phi3, and of zephyr, which ends its turns with the eos token instead. */
#define ROLE_TAGS(end)                                                                                                 \
    "{%- for message in messages -%}\n"                                                                                \
    "    {{- '<|' ~ message.role ~ '|>\\n' -}}\n"                                                                      \
    "    {%- if message.role == 'assistant' -%}\n"                                                                     \
    "        {%- generation -%}{{- text(message.content) ~ " end " -}}{%- endgeneration -%}\n"                         \
    "    {%- else -%}\n"                                                                                               \
    "        {{- text(message.content) ~ " end " -}}\n"                                                                \
    "    {%- endif -%}\n"                                                                                              \
    "    {{- '\\n' -}}\n"                                                                                              \
    "{%- endfor -%}\n"                                                                                                 \
    "{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}\n"

static const struct tr_chat_builtin rows[] = {
    { "chatml", false, TEXT CHATML },
    { "qwen", false,
      TEXT "{%- if not messages or messages[0].role != 'system' -%}\n"
           "    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}\n"
           "{%- endif -%}\n" CHATML },
    { "llama3", false,
      TEXT
      "{{- bos_token -}}\n"
      "{%- for message in messages -%}\n"
      "    {{- '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\\n\\n' -}}\n"
      "    {%- if message.role == 'assistant' -%}\n"
      "        {%- generation -%}{{- text(message.content) | trim ~ '<|eot_id|>' -}}{%- endgeneration -%}\n"
      "    {%- else -%}\n"
      "        {{- text(message.content) | trim ~ '<|eot_id|>' -}}\n"
      "    {%- endif -%}\n"
      "{%- endfor -%}\n"
      "{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}\n" },
    { "llama2", true,
      TEXT
      "{%- set ns = namespace(system='') -%}\n"
      "{%- for message in messages -%}\n"
      "    {%- if message.role == 'system' -%}\n"
      "        {%- set ns.system = '<<SYS>>\\n' ~ text(message.content) ~ '\\n<</SYS>>\\n\\n' -%}\n"
      "    {%- elif message.role == 'assistant' -%}\n"
      "        {%- generation -%}{{- ' ' ~ text(message.content) | trim ~ ' ' ~ eos_token -}}{%- endgeneration -%}\n"
      "    {%- else -%}\n"
      "        {{- bos_token ~ '[INST] ' ~ ns.system ~ text(message.content) | trim ~ ' [/INST]' -}}\n"
      "        {%- set ns.system = '' -%}\n"
      "    {%- endif -%}\n"
      "{%- endfor -%}\n" },
    { "mistral", true,
      TEXT "{%- set ns = namespace(system='') -%}\n"
           "{{- bos_token -}}\n"
           "{%- for message in messages -%}\n"
           "    {%- if message.role == 'system' -%}\n"
           "        {%- set ns.system = text(message.content) ~ '\\n\\n' -%}\n"
           "    {%- elif message.role == 'assistant' -%}\n"
           "        {%- generation -%}{{- ' ' ~ text(message.content) | trim ~ eos_token -}}{%- endgeneration -%}\n"
           "    {%- else -%}\n"
           "        {{- '[INST] ' ~ ns.system ~ text(message.content) ~ '[/INST]' -}}\n"
           "        {%- set ns.system = '' -%}\n"
           "    {%- endif -%}\n"
           "{%- endfor -%}\n" },
    { "gemma", false,
      TEXT "{%- set ns = namespace(system='') -%}\n"
           "{{- bos_token -}}\n"
           "{%- for message in messages -%}\n"
           "    {%- if message.role == 'system' -%}\n"
           "        {%- set ns.system = text(message.content) | trim ~ '\\n\\n' -%}\n"
           "    {%- elif message.role == 'assistant' -%}\n"
           "        {{- '<start_of_turn>model\\n' -}}\n"
           "        {%- generation -%}{{- text(message.content) | trim ~ '<end_of_turn>' -}}{%- endgeneration -%}\n"
           "        {{- '\\n' -}}\n"
           "    {%- else -%}\n"
           "        {{- '<start_of_turn>' ~ message.role ~ '\\n' ~ ns.system ~ text(message.content) | trim ~ "
           "'<end_of_turn>\\n' -}}\n"
           "        {%- set ns.system = '' -%}\n"
           "    {%- endif -%}\n"
           "{%- endfor -%}\n"
           "{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}\n" },
    { "phi3", false, TEXT ROLE_TAGS("'<|end|>'") },
    { "zephyr", true, TEXT ROLE_TAGS("eos_token") },
    { "alpaca", true,
      TEXT "{%- for message in messages -%}\n"
           "    {%- if message.role == 'system' -%}\n"
           "        {{- text(message.content) ~ '\\n\\n' -}}\n"
           "    {%- elif message.role == 'assistant' -%}\n"
           "        {{- '### Response:\\n' -}}\n"
           "        {%- generation -%}{{- text(message.content) ~ eos_token -}}{%- endgeneration -%}\n"
           "        {{- '\\n\\n' -}}\n"
           "    {%- else -%}\n"
           "        {{- '### Instruction:\\n' ~ text(message.content) ~ '\\n\\n' -}}\n"
           "    {%- endif -%}\n"
           "{%- endfor -%}\n"
           "{%- if add_generation_prompt -%}{{- '### Response:\\n' -}}{%- endif -%}\n" },
    { "vicuna", true,
      TEXT "{%- for message in messages -%}\n"
           "    {%- if message.role == 'system' -%}\n"
           "        {{- text(message.content) ~ '\\n\\n' -}}\n"
           "    {%- elif message.role == 'assistant' -%}\n"
           "        {{- 'ASSISTANT:' -}}\n"
           "        {%- generation -%}{{- ' ' ~ text(message.content) | trim ~ eos_token -}}{%- endgeneration -%}\n"
           "    {%- else -%}\n"
           "        {{- 'USER: ' ~ text(message.content) | trim ~ ' ' -}}\n"
           "    {%- endif -%}\n"
           "{%- endfor -%}\n"
           "{%- if add_generation_prompt -%}{{- 'ASSISTANT:' -}}{%- endif -%}\n" },
    { "deepseek", true,
      TEXT "{{- bos_token -}}\n"
           "{%- for message in messages -%}\n"
           "    {%- if message.role == 'system' -%}\n"
           "        {{- text(message.content) -}}\n"
           "    {%- elif message.role == 'assistant' -%}\n"
           "        {{- '<｜Assistant｜>' -}}\n"
           "        {%- generation -%}{{- text(message.content) ~ eos_token -}}{%- endgeneration -%}\n"
           "    {%- else -%}\n"
           "        {{- '<｜User｜>' ~ text(message.content) -}}\n"
           "    {%- endif -%}\n"
           "{%- endfor -%}\n"
           "{%- if add_generation_prompt -%}{{- '<｜Assistant｜>' -}}{%- endif -%}\n" },
};

const struct tr_chat_builtin *tr_chat_find_builtin(const char *name)
{
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++)
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    return NULL;
}

const char *const *tr_chat_builtin_names(size_t *n)
{
    static const char *const names[] = { "chatml", "qwen",   "llama3", "llama2", "mistral", "gemma",
                                         "phi3",   "zephyr", "alpaca", "vicuna", "deepseek" };
    _Static_assert(TR_COUNT_OF(names) == TR_COUNT_OF(rows), "one name a row");
    *n = TR_COUNT_OF(names);
    return names;
}

const char *tr_chat_builtin(const char *name)
{
    const struct tr_chat_builtin *b = tr_chat_find_builtin(name);
    return b ? b->text : NULL;
}
