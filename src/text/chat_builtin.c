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

/* A template that cannot write a call refuses it, because a turn without its call teaches the model to be silent. */
#define NO_CALLS                                                                                                       \
    "{%- for message in messages -%}\n"                                                                                \
    "    {%- if message.tool_calls -%}\n"                                                                              \
    "        {{- raise_exception('this built-in template does not write tool calls; chatml does') -}}\n"               \
    "    {%- endif -%}\n"                                                                                              \
    "{%- endfor -%}\n"

/* chatml, and qwen, which has a default system turn. Calls are written as most models of this kind write them. */
#define CHATML(system_text)                                                                                            \
    TEXT "{%- set has_system = messages and messages[0].role == 'system' -%}\n"                                        \
         "{%- set system = text(messages[0].content) if has_system else '" system_text "' -%}\n"                       \
         "{%- if tools or (system and not has_system) -%}\n"                                                           \
         "    {{- '<|im_start|>system\\n' ~ system -}}\n"                                                              \
         "    {%- if tools -%}\n"                                                                                      \
         "        {{- ('\\n\\n' if system else '') ~ 'Functions that can be called:\\n<tools>' -}}\n"                  \
         "        {%- for tool in tools -%}{{- '\\n' ~ tool | tojson -}}{%- endfor -%}\n"                              \
         "        {{- '\\n</tools>\\nA call is a JSON object with name and arguments between <tool_call> and "         \
         "</tool_call>.' -}}\n"                                                                                        \
         "    {%- endif -%}\n"                                                                                         \
         "    {{- '<|im_end|>\\n' -}}\n"                                                                               \
         "{%- endif -%}\n"                                                                                             \
         "{%- for message in messages -%}\n"                                                                           \
         "    {%- if not (loop.first and tools and has_system) -%}\n"                                                  \
         "        {{- '<|im_start|>' ~ message.role ~ '\\n' -}}\n"                                                     \
         "        {%- if message.role == 'assistant' -%}\n"                                                            \
         "            {%- generation -%}\n"                                                                            \
         "            {%- if message.reasoning_content -%}\n"                                                          \
         "                {{- '<think>\\n' ~ message.reasoning_content ~ '\\n</think>\\n\\n' -}}\n"                    \
         "            {%- endif -%}\n"                                                                                 \
         "            {{- text(message.content) -}}\n"                                                                 \
         "            {%- for call in message.tool_calls or [] -%}\n"                                                  \
         "                {%- set call = call.function if call.function else call -%}\n"                               \
         "                {{- ('' if loop.first and not message.content else '\\n') ~ '<tool_call>\\n{\"name\": ' "    \
         "-}}\n"                                                                                                       \
         "                {{- call.name | tojson ~ ', \"arguments\": ' -}}\n"                                          \
         "                {{- (call.arguments if call.arguments is string else call.arguments | tojson) -}}\n"         \
         "                {{- '}\\n</tool_call>' -}}\n"                                                                \
         "            {%- endfor -%}\n"                                                                                \
         "            {{- '<|im_end|>' -}}\n"                                                                          \
         "            {%- endgeneration -%}\n"                                                                         \
         "        {%- else -%}\n"                                                                                      \
         "            {{- text(message.content) ~ '<|im_end|>' -}}\n"                                                  \
         "        {%- endif -%}\n"                                                                                     \
         "        {{- '\\n' -}}\n"                                                                                     \
         "    {%- endif -%}\n"                                                                                         \
         "{%- endfor -%}\n"                                                                                            \
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
    { "chatml", false, CHATML("") },
    { "qwen", false, CHATML("You are a helpful assistant.") },
    { "llama3", false,
      TEXT NO_CALLS
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
      TEXT NO_CALLS
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
      TEXT NO_CALLS
      "{%- set ns = namespace(system='') -%}\n"
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
      TEXT NO_CALLS
      "{%- set ns = namespace(system='') -%}\n"
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
    { "phi3", false, TEXT NO_CALLS ROLE_TAGS("'<|end|>'") },
    { "zephyr", true, TEXT NO_CALLS ROLE_TAGS("eos_token") },
    { "alpaca", true,
      TEXT NO_CALLS "{%- for message in messages -%}\n"
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
      TEXT NO_CALLS
      "{%- for message in messages -%}\n"
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
      TEXT NO_CALLS "{{- bos_token -}}\n"
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
    return TR_ROW(rows, name);
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
