//! From a chat request's messages to the prompt's text: contents made plain, tool calls made objects, the template
//! rendered, and what the next prompts will begin with.

use crate::client_header;
use crate::error::ServerError;
use crate::json::brief;
use crate::params::Fields;
use crate::template::{ChatTemplate, RenderInput};
use crate::tokens::{Rendered, Stable, may_have_boundaries};
use serde_json::{Map, Value, json};

/// The part of a chat request that becomes the prompt, checked.
#[derive(Debug)]
pub(crate) struct ChatPrompt {
    input: RenderInput,
    continue_final: bool,
}

impl ChatPrompt {
    /// Reads `messages`, `tools` and what goes to the template. With `keep_headers`, a client's volatile header line
    /// stays in the system prompt.
    ///
    /// # Errors
    /// 400 naming the message, the part or the field at fault.
    pub(crate) fn read(f: Fields<'_>, keep_headers: bool) -> Result<Self, ServerError> {
        let allowed = "a list of at least one message";
        let messages = match f.get("messages") {
            Some(Value::Array(list)) if !list.is_empty() => list,
            found => return Err(f.refuse("messages", allowed, found.unwrap_or(&Value::Null))),
        };
        let system = messages.iter().position(|m| m["role"].as_str().is_some_and(is_system));
        let strips = |i: usize| !keep_headers && system == Some(i);
        let each = messages.iter().enumerate().map(|(i, m)| message(i, m, strips(i)));
        let messages: Vec<Value> = each.collect::<Result<_, _>>()?;
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

    /// The prompt's text, and what it shares with the prompts to come.
    ///
    /// # Errors
    /// 400 naming the message that the template refuses.
    pub(crate) fn render(mut self, template: &ChatTemplate) -> Result<Rendered, ServerError> {
        for message in &mut self.input.messages {
            if message["role"] == "developer" && !template.knows_developer() {
                message["role"] = "system".into();
            }
            if template.wants_parts() {
                message["content"] = parts(&message["content"]);
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
        let stable = if may_have_boundaries(&text) { self.stable(template, &text) } else { Vec::new() };
        Ok(Rendered { text, stable })
    }

    /// Beginnings of the text that other prompts will have: another conversation with the same system prompt and
    /// tools, the next turn, and this conversation without the opening of the answer. Whatever the template refuses
    /// is left out.
    fn stable(mut self, template: &ChatTemplate, text: &str) -> Vec<Stable> {
        let content = |text: &str| if template.wants_parts() { parts(&text.into()) } else { text.into() };
        let says = |role: &str, text: &str| json!({"role": role, "content": content(text)});
        let role = |m: &Value| m["role"].as_str().unwrap_or_default().to_owned();
        let messages = std::mem::take(&mut self.input.messages);
        let system = messages.iter().take_while(|m| is_system(&role(m))).count();
        let last = messages.last().map(role).unwrap_or_default();
        let has_tools = self.has_tools();
        let mut other = |messages: Vec<Value>, opened: bool| {
            self.input.messages = messages;
            self.input.add_generation_prompt = opened;
            template.try_render(&self.input).map(|other| Stable::new(text, other))
        };
        let mut found = Vec::new();
        if system > 0 || has_tools {
            // A word that the conversation does not happen to begin with.
            let first =
                messages.get(system).map(|m| m["content"].as_str().or_else(|| m["content"][0]["text"].as_str()));
            let word = if first.flatten().is_some_and(|t| t.trim_start().starts_with('a')) { "b" } else { "a" };
            let mut short = messages[..system].to_vec();
            short.push(says("user", word));
            found.extend(other(short, true));
        }
        let mut next = messages.clone();
        if last != "assistant" {
            next.push(says("assistant", "a"));
        }
        next.push(says("user", "b"));
        found.extend(other(next, true));
        found.extend(other(messages, false));
        found
    }
}

/// A content as templates take it that only show lists of parts.
fn parts(text: &Value) -> Value {
    json!([{"type": "text", "text": text}])
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

/// One message as templates take it: `content` a string, nulls and empty lists left out, arguments as objects. With
/// `strip_header`, a client's volatile header line at its start goes.
fn message(i: usize, message: &Value, strip_header: bool) -> Result<Value, ServerError> {
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
    let content = match given.get("content") {
        None if role != "assistant" => return Err(wrong(&format!("{place}.content"), "there", &Value::Null)),
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) if strip_header => client_header::strip(text).to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => joined(&place, parts, strip_header)?,
        Some(other) => {
            return Err(wrong(&format!("{place}.content"), "a string, a list of text parts, or null", other));
        }
    };
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
fn joined(place: &str, parts: &[Value], strip_header: bool) -> Result<String, ServerError> {
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
        out.push_str(if strip_header && j == 0 { client_header::strip(text) } else { text });
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<ChatPrompt, ServerError> {
        ChatPrompt::read(Fields::new(body.as_object().unwrap()), false)
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
    fn the_billing_header_goes_from_the_start_of_the_system_prompt() {
        const HEADER: &str = "x-anthropic-billing-header: cc_version=2.1; cch=a1b2c;";
        let contents = |messages: Value, keep: bool| -> Vec<String> {
            let body = json!({"messages": messages});
            let read = ChatPrompt::read(Fields::new(body.as_object().unwrap()), keep).unwrap();
            read.input.messages.iter().map(|m| m["content"].as_str().unwrap().to_owned()).collect()
        };
        let line = format!("{HEADER}\nBe brief.");
        let text = |text: &str| json!({"type": "text", "text": text});
        let (user, split) = (json!({"role": "user", "content": line}), json!([text(HEADER), text("Be"), text(&line)]));
        for role in ["system", "developer"] {
            for (content, left) in [(json!(line), "Be brief.".to_owned()), (split.clone(), format!("Be{line}"))] {
                let messages = json!([{"role": role, "content": content}, user, {"role": "system", "content": line}]);
                assert_eq!(contents(messages.clone(), false), [left, line.clone(), line.clone()]);
                assert!(contents(messages, true)[0].starts_with(HEADER));
            }
        }
        // Wherever the system prompt is, it is the system prompt.
        let late = json!([user, {"role": "system", "content": line}]);
        assert_eq!(contents(late, false), [line.as_str(), "Be brief."]);
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
