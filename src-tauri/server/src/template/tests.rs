use super::*;

fn render(source: &str, messages: Value) -> Result<String, ServerError> {
    render_with(source, messages, Map::new())
}

fn render_with(source: &str, messages: Value, kwargs: Map<String, Value>) -> Result<String, ServerError> {
    let config = json!({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": null});
    ChatTemplate::new(source, &config)?.render(&RenderInput {
        messages: messages.as_array().unwrap().clone(),
        add_generation_prompt: true,
        kwargs,
        tools: None,
    })
}

const CHATML: &str = "{%- for message in messages %}\n    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\n' }}\n{%- endif %}\n";

#[test]
fn chatml() {
    let text = render(CHATML, json!([{"role": "user", "content": "Hi <b>&'\" there"}])).unwrap();
    assert_eq!(text, "<|im_start|>user\nHi <b>&'\" there<|im_end|>\n<|im_start|>assistant\n");
}

#[test]
fn blocks_are_trimmed_as_hugging_face_trims_them() {
    let source = "{{ bos_token }}\n  {% for m in messages %}\n[{{ m.content }}]\n  {% endfor %}\nend{{ eos_token }}\n";
    assert_eq!(render(source, json!([{"role": "user", "content": "a"}])).unwrap(), "<s>\n[a]\nend</s>");
}

#[test]
fn case_5_generation_blocks_are_no_ops() {
    let source = "{% for m in messages %}{% generation %}\n{{ m.content }}{%- endgeneration -%}\n{% endfor %}!";
    assert_eq!(render(source, json!([{"role": "user", "content": "a"}])).unwrap(), "a!");
    for tags in [
        "{% generation %}x{% endgeneration %}",
        "{%- generation -%} x {%- endgeneration -%}",
        "{%generation%}x{%endgeneration%}",
    ] {
        assert_eq!(render(tags, json!([])).unwrap(), "x", "{tags}");
    }
    let word = "{% set generation = 'generation' %}{{ generation }} {{ '{' }}% generation %}";
    assert_eq!(render(word, json!([])).unwrap(), "generation {% generation %}");
}

#[test]
fn case_6_python_methods() {
    let source = "{{ messages[0].content.split('</think>')[-1].lstrip() }}|{{ messages[0].content.split('</think>')[0].split('<think>')[-1].strip('\\n') }}";
    let text = render(source, json!([{"role": "assistant", "content": "<think>\nhm\n</think>\n\n so"}])).unwrap();
    assert_eq!(text, "so|hm");
    let more = "{{ 'abc'.startswith('a') }} {{ 'x.y'.removeprefix('x') }} {{ {'a': 1}.get('b') }} {{ 'a,b'.split(',')|length }} {% for k, v in {'q': 1}.items() %}{{ k }}={{ v }}{% endfor %} {{ messages[::-1]|length }}";
    assert_eq!(render(more, json!([1, 2])).unwrap(), "True .y None 2 q=1 2");
}

#[test]
fn values_print_as_in_python() {
    let source = "{{ none }} {{ true }} {{ 1.0 }} {{ 5 }} {{ x }} {{ missing }}|";
    let x = json!({"a": [1, 2.5, "it's", null], "b": false});
    let text = render_with(source, json!([]), Map::from_iter([("x".into(), x)])).unwrap();
    assert_eq!(text, "None True 1.0 5 {'a': [1, 2.5, \"it's\", None], 'b': False} |");
}

#[test]
fn tojson_writes_what_json_dumps_writes() {
    let x = json!({"z": "<é&'\"\n", "a": [1, 2.0, 1e16, 1e-7, {}], "e": [], "n": null, "t": true});
    let run = |source: &str| render_with(source, json!([]), Map::from_iter([("x".into(), x.clone())])).unwrap();
    assert_eq!(
        run("{{ x | tojson }}"),
        r#"{"z": "<é&'\"\n", "a": [1, 2.0, 1e+16, 1e-07, {}], "e": [], "n": null, "t": true}"#
    );
    assert_eq!(
        run("{{ x | tojson(indent=2) }}"),
        "{\n  \"z\": \"<é&'\\\"\\n\",\n  \"a\": [\n    1,\n    2.0,\n    1e+16,\n    1e-07,\n    {}\n  ],\n  \"e\": [],\n  \"n\": null,\n  \"t\": true\n}"
    );
    assert_eq!(
        run(
            "{{ x.z | tojson(ensure_ascii=True) }} {{ [1, {'b': 1, 'a': 2}] | tojson(separators=(',', ':'), sort_keys=true) }}"
        ),
        r#""<\u00e9&'\"\n" [1,{"a":2,"b":1}]"#
    );
}

#[test]
fn the_refused_message_is_named() {
    let source = "{% for m in messages %}{% if m.role not in ['user', 'assistant', 'system'] %}{{ raise_exception('Unknown role: ' + m.role) }}{% endif %}{{ m.content }}{% endfor %}";
    for at in [0, 1, 4, 6] {
        let mut messages = vec![json!({"role": "user", "content": "x"}); 7];
        messages[at] = json!({"role": "wizard", "content": "x"});
        let e = render(source, messages.into()).unwrap_err();
        assert_eq!(e.to_string(), format!("the model's chat template refuses `messages[{at}]`: Unknown role: wizard"));
        assert_eq!((e.status().as_u16(), e.param_name()), (400, Some(format!("messages[{at}]").as_str())));
    }
    let alternate = "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}";
    let user = json!({"role": "user", "content": "x"});
    let e = render(alternate, json!([user, user, user])).unwrap_err();
    assert_eq!(e.param_name(), Some("messages[1]"));
}

#[test]
fn hostile_templates_end() {
    for source in [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}x{% endfor %}{% endfor %}{% endfor %}",
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(200) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
        "{{ 'x' * 9999999999 }}",
        "{{ [1] | tojson(indent=999999999) }}{{ 'ab'.center(5) }}",
    ] {
        let e = render(source, json!([{"role": "user", "content": "x"}])).unwrap_err();
        assert_eq!(e.status().as_u16(), 400, "{source}");
    }
    assert_eq!(render("{% if %}", json!([])).unwrap_err().status().as_u16(), 400);
}

#[test]
fn content_form_is_found_by_trying() {
    let parts = "{% for m in messages %}{% for c in m.content %}{% if c.type == 'text' %}{{ c.text }}{% endif %}{% endfor %}{% endfor %}";
    let template = |source: &str| ChatTemplate::new(source, &json!({})).unwrap().wants_parts();
    assert!(template(parts));
    assert!(!template(CHATML));
    assert!(!template(
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{{ m.content[0].text }}{% endif %}{% endfor %}"
    ));
    assert!(!template("nothing"));
}

#[test]
fn arguments_reach_templates_of_either_kind() {
    let messages = json!([{"role": "assistant", "content": "", "tool_calls": [
        {"type": "function", "function": {"name": "f", "arguments": {"a": "é"}}}]}]);
    let each = "{% for m in messages %}{% for c in m.tool_calls %}";
    let end = "{% endfor %}{% endfor %}";
    let as_object = format!("{each}{{{{ c.function.arguments | tojson }}}}{end}");
    assert_eq!(render(&as_object, messages.clone()).unwrap(), r#"{"a": "é"}"#);
    let as_string = format!("{each}{{{{ '<' + c.function.arguments + '>' }}}}{end}");
    assert_eq!(render(&as_string, messages).unwrap(), r#"<{"a": "é"}>"#);
}

#[test]
fn the_date_is_a_date() {
    let text = render("{{ strftime_now('%Y-%m-%d') }}", json!([])).unwrap();
    assert!(text.len() == 10 && text.starts_with("20"), "{text}");
    assert_eq!(render("{{ strftime_now('%') }}", json!([])).unwrap_err().status().as_u16(), 400);
}

#[test]
fn tools_and_documents_are_none_when_absent() {
    assert_eq!(
        render("{{ tools is defined }} {{ tools is none }} {{ documents }}", json!([])).unwrap(),
        "True True None"
    );
}
