//! From a chat request's messages to prompt token ids: contents made plain, tool calls made objects, the
//! template rendered, the beginning-of-text token there exactly once.

use crate::error::ServerError;
use crate::json::brief;
use crate::params::Fields;
use crate::template::{ChatTemplate, RenderInput};
use hearth_core::backend::ServedModel;
use hearth_core::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

/// A client's header that changes with every request; it would spoil every prompt cache.
const BILLING_HEADER: &str = "x-anthropic-billing-header:";

/// The part of a chat request that becomes the prompt, checked.
#[derive(Debug)]
pub(crate) struct ChatPrompt {
    input: RenderInput,
    continue_final: bool,
}

impl ChatPrompt {
    /// Reads `messages`, `tools` and what goes to the template.
    ///
    /// # Errors
    /// 400 naming the message, the part or the field at fault.
    pub(crate) fn read(f: Fields<'_>) -> Result<Self, ServerError> {
        let allowed = "a list of at least one message";
        let messages = match f.get("messages") {
            Some(Value::Array(list)) if !list.is_empty() => list,
            found => return Err(f.refuse("messages", allowed, found.unwrap_or(&Value::Null))),
        };
        let messages: Vec<Value> = messages.iter().enumerate().map(|(i, m)| message(i, m)).collect::<Result<_, _>>()?;
        let continue_final = f.bool("continue_final_message")?.unwrap_or(false);
        let add_generation_prompt = f.bool("add_generation_prompt")?.unwrap_or(!continue_final);
        if continue_final && add_generation_prompt {
            return Err(ServerError::param(
                "continue_final_message",
                "`continue_final_message` and `add_generation_prompt` cannot both be true",
            ));
        }
        if continue_final && messages.last().is_none_or(|m| m["role"] != "assistant" || m["content"] == "") {
            return Err(ServerError::param(
                "continue_final_message",
                "`continue_final_message` needs a last message by the assistant with text in it",
            ));
        }
        let input = RenderInput { messages, tools: tools(f)?, add_generation_prompt, kwargs: kwargs(f)? };
        Ok(ChatPrompt { input, continue_final })
    }

    /// Whether tool definitions go to the template.
    pub(crate) fn has_tools(&self) -> bool {
        self.input.tools.is_some()
    }

    /// The prompt's token ids.
    ///
    /// # Errors
    /// 400 naming the message that the template refuses.
    pub(crate) fn tokens(mut self, template: &ChatTemplate, model: &ServedModel) -> Result<Vec<u32>, ServerError> {
        for message in &mut self.input.messages {
            if message["role"] == "developer" && !template.knows_developer() {
                message["role"] = "system".into();
            }
            if template.wants_parts() {
                message["content"] = json!([{"type": "text", "text": message["content"]}]);
            }
        }
        let mut text = template.render(&self.input)?;
        if self.continue_final {
            let last = self.input.messages.last().map_or(&Value::Null, |m| &m["content"]);
            let last = last.as_str().or_else(|| last[0]["text"].as_str()).unwrap_or_default();
            let end = text.rfind(last.trim()).map(|at| at + last.trim().len()).ok_or_else(|| {
                ServerError::param(
                    "continue_final_message",
                    "the chat template does not show the last message as it is",
                )
            })?;
            // Whitespace at the end of the message counts if the template left it there.
            let tail = &last[last.trim_end().len()..];
            let end = if text[end..].starts_with(tail) { end + tail.len() } else { end };
            text.truncate(end);
        }
        let ids = encode(&model.tokenizer, &text, false)?;
        match model.tokenizer.bos() {
            Some(bos) if ids.first() != Some(&bos) => Ok(std::iter::once(bos).chain(ids).collect()),
            _ => Ok(ids),
        }
    }
}

/// Token ids of a plain prompt; the beginning-of-text token comes first where the model has one, and never twice.
///
/// # Errors
/// 400 for a text that the tokenizer cannot spell.
pub(crate) fn plain_tokens(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, ServerError> {
    let has_bos = tokenizer.bos().map(|bos| tokenizer.token_bytes(bos)).is_some_and(|b| text.as_bytes().starts_with(b));
    encode(tokenizer, text, !has_bos)
}

pub(crate) fn encode(tokenizer: &Tokenizer, text: &str, add_special: bool) -> Result<Vec<u32>, ServerError> {
    tokenizer.encode(text, add_special).map_err(|e| ServerError::bad(format!("the prompt cannot be tokenized: {e}")))
}

fn tools(f: Fields<'_>) -> Result<Option<Vec<Value>>, ServerError> {
    match f.get("tool_choice") {
        None | Some(Value::Object(_)) => {}
        Some(Value::String(s)) if matches!(s.as_str(), "none" | "auto" | "required") => {}
        Some(v) => return Err(f.refuse("tool_choice", "none, auto, required, or an object naming a function", v)),
    }
    let empty = Vec::new();
    let list = match f.get("tools") {
        None => &empty,
        Some(Value::Array(list)) => list,
        Some(other) => return Err(f.refuse("tools", "a list of tools", other)),
    };
    // A call that must be made needs a tool that can be called.
    if let Some(choice) = f.get("tool_choice") {
        let name = &choice["function"]["name"];
        let callable = match choice {
            Value::Object(_) => list.iter().any(|tool| tool["function"]["name"] == *name && name.is_string()),
            _ => choice != "required" || !list.is_empty(),
        };
        if !callable {
            return Err(f.refuse("tool_choice", "none or auto, or about a function in `tools`", choice));
        }
    }
    for (i, tool) in list.iter().enumerate() {
        let named = tool["type"] == "function" && tool["function"]["name"].as_str().is_some_and(|n| !n.is_empty());
        if !named {
            let place = format!("tools[{i}]");
            return Err(f.refuse(&place, "an object with type \"function\" and a function that has a name", tool));
        }
    }
    // With "none" the model must not call: it does not learn of the tools.
    let none = f.get("tool_choice").is_some_and(|c| c == "none");
    Ok(if list.is_empty() || none { None } else { Some(list.clone()) })
}

/// Variables for the template: `chat_template_kwargs`, and the two that have fields of their own.
fn kwargs(f: Fields<'_>) -> Result<Map<String, Value>, ServerError> {
    let mut kwargs = f.object("chat_template_kwargs")?.cloned().unwrap_or_default();
    if let Some(effort) = f.string("reasoning_effort")? {
        kwargs.entry("reasoning_effort").or_insert_with(|| effort.into());
        if effort == "none" {
            kwargs.entry("enable_thinking").or_insert(false.into());
        }
    }
    if let Some(thinking) = f.bool("enable_thinking")? {
        kwargs.insert("enable_thinking".into(), thinking.into());
    }
    Ok(kwargs)
}

/// One message as templates take it: `content` a string, nulls and empty lists left out, arguments as objects.
fn message(i: usize, message: &Value) -> Result<Value, ServerError> {
    let place = format!("messages[{i}]");
    let Value::Object(given) = message else {
        return Err(wrong(&place, "an object with role and content", message));
    };
    let role = match given.get("role") {
        Some(Value::String(role)) if !role.is_empty() => role,
        found => {
            return Err(wrong(&format!("{place}.role"), "a string such as \"user\"", found.unwrap_or(&Value::Null)));
        }
    };
    let mut content = match given.get("content") {
        None if role != "assistant" => return Err(wrong(&format!("{place}.content"), "there", &Value::Null)),
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => joined(&place, role, parts)?,
        Some(other) => {
            return Err(wrong(&format!("{place}.content"), "a string, a list of text parts, or null", other));
        }
    };
    if is_system(role) {
        content = without_billing_header(&content).to_owned();
    }
    let mut out = Map::new();
    for (key, value) in given {
        match key.as_str() {
            "content" => {}
            "tool_calls" => {
                let calls = tool_calls(&place, value)?;
                if !calls.is_empty() {
                    out.insert(key.clone(), calls.into());
                }
            }
            _ if value.is_null() => {}
            _ => {
                out.insert(key.clone(), value.clone());
            }
        }
    }
    out.insert("content".into(), content.into());
    Ok(Value::Object(out))
}

fn is_system(role: &str) -> bool {
    matches!(role, "system" | "developer")
}

fn wrong(place: &str, allowed: &str, found: &Value) -> ServerError {
    ServerError::param(place, format!("`{place}` must be {allowed}; it is {}", brief(found)))
}

/// The text of all parts, one after the other.
fn joined(place: &str, role: &str, parts: &[Value]) -> Result<String, ServerError> {
    let mut out = String::new();
    for (j, part) in parts.iter().enumerate() {
        let place = format!("{place}.content[{j}]");
        let text = match (part, part["type"].as_str()) {
            (Value::String(text), _) => text,
            (_, Some("text" | "input_text" | "output_text")) => match &part["text"] {
                Value::String(text) => text,
                other => return Err(wrong(&format!("{place}.text"), "a string", other)),
            },
            (_, Some("refusal")) => part["refusal"].as_str().unwrap_or_default(),
            (_, Some(kind)) => {
                let message = format!("`{place}` is of type `{kind}`; this model takes text only");
                return Err(ServerError::unsupported(place, message));
            }
            (other, None) => return Err(wrong(&place, "an object with type \"text\"", other)),
        };
        out.push_str(if is_system(role) { without_billing_header(text) } else { text });
    }
    Ok(out)
}

fn tool_calls(place: &str, value: &Value) -> Result<Vec<Value>, ServerError> {
    let list = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Array(list) => list,
        other => return Err(wrong(&format!("{place}.tool_calls"), "a list", other)),
    };
    let mut calls = list.clone();
    for (j, call) in calls.iter_mut().enumerate() {
        let place = format!("{place}.tool_calls[{j}].function");
        let function = match call.get_mut("function") {
            Some(Value::Object(f)) if f.get("name").is_some_and(Value::is_string) => f,
            found => return Err(wrong(&place, "an object with a name", &found.map(|v| v.take()).unwrap_or_default())),
        };
        let arguments = match function.get("arguments") {
            None | Some(Value::Null) => json!({}),
            Some(Value::String(text)) if text.trim().is_empty() => json!({}),
            Some(Value::String(text)) => serde_json::from_str(text).map_err(|e| {
                let place = format!("{place}.arguments");
                let message = format!("`{place}` must be JSON: {e}; it is {}", brief(&text.clone().into()));
                ServerError::param(place, message)
            })?,
            Some(object @ Value::Object(_)) => object.clone(),
            Some(other) => return Err(wrong(&format!("{place}.arguments"), "JSON in a string, or an object", other)),
        };
        function.insert("arguments".into(), arguments);
    }
    Ok(calls)
}

/// The text after the billing header at its start (`x-anthropic-billing-header: a=b; c=d;` and the line's end).
fn without_billing_header(text: &str) -> &str {
    let Some(mut rest) = text.strip_prefix(BILLING_HEADER) else { return text };
    loop {
        let line = rest.find('\n').map_or(rest, |end| &rest[..end]);
        let field = line.trim_start_matches([' ', '\t']);
        let key_end =
            field.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))).unwrap_or(field.len());
        if key_end == 0 || !field[key_end..].starts_with('=') {
            break;
        }
        let blanks = line.len() - field.len();
        match field.find(';') {
            Some(end) => rest = &rest[blanks + end + 1..],
            None => {
                rest = &rest[line.len()..]; // the last field of the line needs no semicolon
                break;
            }
        }
    }
    let rest = rest.trim_start_matches([' ', '\t']);
    let rest = rest.strip_prefix('\r').unwrap_or(rest);
    rest.strip_prefix('\n').unwrap_or(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<ChatPrompt, ServerError> {
        ChatPrompt::read(Fields::new(body.as_object().unwrap()))
    }

    fn refused(messages: Value) -> String {
        let e = read(json!({"messages": messages})).unwrap_err();
        assert_eq!(e.status().as_u16(), 400);
        assert!(e.to_string().contains(e.param_name().unwrap()), "{e:?}");
        e.to_string()
    }

    #[test]
    fn case_1_null_content_is_empty_text() {
        let call = json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}});
        let p = read(json!({"messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": null, "tool_calls": [call], "refusal": null},
            {"role": "assistant", "tool_calls": []},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}]}]}));
        let m = p.unwrap().input.messages;
        assert_eq!(m[1]["content"], "");
        assert_eq!(m[1]["tool_calls"][0]["function"]["arguments"], json!({"a": 1}));
        assert_eq!(m[1].get("refusal"), None);
        assert_eq!(m[2], json!({"role": "assistant", "content": ""}));
        assert_eq!((&m[3]["content"], &m[3]["tool_call_id"]), (&json!("42"), &json!("c1")));
    }

    #[test]
    fn refusals_name_the_place() {
        let call = |arguments: Value| {
            json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": null,
            "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}])
        };
        assert!(refused(call(json!("{"))).starts_with("`messages[1].tool_calls[0].function.arguments` must be JSON"));
        assert!(refused(call(json!(5))).ends_with("it is 5"));
        for (messages, part) in [
            (json!([]), "`messages` must be a list of at least one message"),
            (json!("hi"), "`messages` must be a list"),
            (json!(["hi"]), "`messages[0]` must be an object"),
            (json!([{"content": "x"}]), "`messages[0].role`"),
            (json!([{"role": 5, "content": "x"}]), "`messages[0].role` must be a string such as \"user\"; it is 5"),
            (json!([{"role": "user"}]), "`messages[0].content` must be there"),
            (json!([{"role": "user", "content": 5}]), "`messages[0].content` must be a string"),
            (
                json!([{"role": "user", "content": [{"type": "text"}]}]),
                "`messages[0].content[0].text` must be a string",
            ),
            (json!([{"role": "user", "content": [5]}]), "`messages[0].content[0]` must be an object"),
            (
                json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]),
                "`messages[0].content[0]` is of type `image_url`; this model takes text only",
            ),
            (json!([{"role": "assistant", "tool_calls": [5]}]), "`messages[0].tool_calls[0].function`"),
        ] {
            let message = refused(messages);
            assert!(message.starts_with(part), "{message}");
        }
    }

    #[test]
    fn the_billing_header_goes() {
        for (text, rest) in [
            ("x-anthropic-billing-header: cc_version=2.1; cch=a1b2c;\nYou are X.", "You are X."),
            ("x-anthropic-billing-header: cc_version=2.1; cch=a1b2c;You are X.", "You are X."),
            ("x-anthropic-billing-header: cc_version=2.1; cch=a1b2c;", ""),
            ("x-anthropic-billing-header: cch=a1b2c\r\nYou", "\r\nYou"),
            ("x-anthropic-billing-header: a=1;\r\nYou", "You"),
            ("You: x-anthropic-billing-header: a=1;", "You: x-anthropic-billing-header: a=1;"),
        ] {
            let m = read(json!({"messages": [{"role": "system", "content": text}]})).unwrap().input.messages;
            let stripped = m[0]["content"].as_str().unwrap();
            assert_eq!(stripped.trim_start_matches("\r\n"), rest.trim_start_matches("\r\n"), "{text}");
        }
        let parts =
            json!([{"type": "text", "text": "x-anthropic-billing-header: a=1;"}, {"type": "text", "text": "Sys"}]);
        let m = read(json!({"messages": [{"role": "system", "content": parts}]})).unwrap().input.messages;
        assert_eq!(m[0]["content"], "Sys");
        let user = json!({"messages": [{"role": "user", "content": "x-anthropic-billing-header: a=1;"}]});
        assert_eq!(read(user).unwrap().input.messages[0]["content"], "x-anthropic-billing-header: a=1;");
    }

    #[test]
    fn tools_reach_the_template_unless_none_may_be_called() {
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
        let body = |tools: Value, choice: Value| json!({"messages": [{"role": "user", "content": "x"}], "tools": tools, "tool_choice": choice});
        assert!(read(body(json!([tool]), json!("auto"))).unwrap().has_tools());
        assert!(read(body(json!([tool]), json!({"type": "function", "function": {"name": "f"}}))).unwrap().has_tools());
        assert!(!read(body(json!([tool]), json!("none"))).unwrap().has_tools());
        assert!(!read(body(json!([]), Value::Null)).unwrap().has_tools());
        assert_eq!(read(body(json!([tool, 5]), Value::Null)).unwrap_err().param_name(), Some("tools[1]"));
        for choice in [json!("any"), json!({"type": "function", "function": {"name": "g"}})] {
            assert_eq!(read(body(json!([tool]), choice)).unwrap_err().param_name(), Some("tool_choice"));
        }
        assert_eq!(read(body(json!([]), json!("required"))).unwrap_err().param_name(), Some("tool_choice"));
    }
}
