//! Chat templates: Jinja as Hugging Face runs it. Compiles a model's template once, finds out what form of
//! message content it understands, renders messages to the prompt's text, and says which message it refused.

mod python;

use crate::error::ServerError;
use hearth_core::backend::ServedModel;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior};
use serde_json::{Map, Value, json};
use std::borrow::Cow;

/// Work that every rendering may do, in the template engine's units: one instruction, or 64 bytes of new text.
const BASE_FUEL: u64 = 2_000_000;
/// Work on top of that for each byte of the messages.
const FUEL_PER_BYTE: u64 = 8;

/// Special tokens of a tokenizer config that templates may name.
const SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// A compiled chat template with the special tokens of its model.
pub struct ChatTemplate {
    env: Environment<'static>,
    special: Map<String, Value>,
    wants_parts: bool,
    knows_developer: bool,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("wants_parts", &self.wants_parts).finish_non_exhaustive()
    }
}

/// What a template is rendered with.
#[derive(Debug, Clone, Default)]
pub struct RenderInput {
    /// The messages: objects with at least `role` and a `content` string.
    pub messages: Vec<Value>,
    /// Tool definitions, if any.
    pub tools: Option<Vec<Value>>,
    /// Whether the template opens the assistant's turn.
    pub add_generation_prompt: bool,
    /// Further variables (`enable_thinking` and the like).
    pub kwargs: Map<String, Value>,
}

/// The template that a model is served with: its own file, or the matching one in its tokenizer config.
///
/// # Errors
/// 400 when the model has none.
pub fn source(model: &ServedModel, with_tools: bool) -> Result<String, ServerError> {
    if let Some(source) = &model.chat_template {
        return Ok(source.clone());
    }
    let named = |list: &Vec<Value>, name: &str| {
        list.iter().find(|t| t["name"] == name).and_then(|t| t["template"].as_str()).map(str::to_owned)
    };
    let found = match &model.tokenizer_config["chat_template"] {
        Value::String(source) => Some(source.clone()),
        Value::Array(list) => (if with_tools { named(list, "tool_use") } else { None })
            .or_else(|| named(list, "default"))
            .or_else(|| list.first().and_then(|t| t["template"].as_str()).map(str::to_owned)),
        _ => None,
    };
    found.ok_or_else(|| ServerError::BadRequest {
        message: format!("the model `{}` has no chat template; use /v1/completions with a plain prompt", model.id),
        param: Some("messages".into()),
        code: Some("no_chat_template"),
    })
}

impl ChatTemplate {
    /// Compiles a template. `tokenizer_config` gives the special tokens.
    ///
    /// # Errors
    /// 400 with the template engine's message when it does not parse.
    pub fn new(source: &str, tokenizer_config: &Value) -> Result<Self, ServerError> {
        let mut env = Environment::new();
        // Without this, errors carry copies of all variables and of the source.
        env.set_debug(false);
        env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(|e| broken(&e))?);
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_undefined_behavior(UndefinedBehavior::Lenient);
        python::install(&mut env);
        env.add_template_owned("chat", without_generation_tags(source).into_owned()).map_err(|e| broken(&e))?;
        let mut template = ChatTemplate {
            env,
            special: special_tokens(tokenizer_config),
            wants_parts: false,
            knows_developer: source.contains("developer"),
        };
        template.wants_parts = template.probe_parts();
        Ok(template)
    }

    /// Whether the template only shows content that is a list of parts.
    pub fn wants_parts(&self) -> bool {
        self.wants_parts
    }

    /// Whether the template names the role `developer`.
    pub fn knows_developer(&self) -> bool {
        self.knows_developer
    }

    /// Renders to the prompt's text.
    ///
    /// # Errors
    /// 400 that names the message which the template refuses.
    pub fn render(&self, input: &RenderInput) -> Result<String, ServerError> {
        let first = match self.render_once(input, &input.messages) {
            Ok(text) => return Ok(text),
            Err(e) => e,
        };
        // Some templates write arguments as they came, as a string; most want the object.
        let retried = with_string_arguments(&input.messages).map(|messages| self.render_once(input, &messages));
        if let Some(Ok(text)) = retried {
            return Ok(text);
        }
        let reason = reason(&first);
        if first.kind() == ErrorKind::OutOfFuel {
            return Err(ServerError::BadRequest {
                message: format!("the chat template did not come to an end: {reason}"),
                param: Some("messages".into()),
                code: Some("chat_template_error"),
            });
        }
        // The shortest beginning of the conversation that fails in the same way ends with the culprit.
        let fails =
            |n: usize| self.render_once(input, &input.messages[..n]).err().is_some_and(|e| self::reason(&e) == reason);
        let (mut good, mut bad) = (0, input.messages.len());
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            if fails(middle) { bad = middle } else { good = middle }
        }
        let place = format!("messages[{}]", bad.saturating_sub(1));
        Err(ServerError::BadRequest {
            message: format!("the model's chat template refuses `{place}`: {reason}"),
            param: Some(place),
            code: Some("chat_template_error"),
        })
    }

    /// Renders to the prompt's text, or not at all: for texts that nobody asked for.
    pub(crate) fn try_render(&self, input: &RenderInput) -> Option<String> {
        let strings = || self.render_once(input, &with_string_arguments(&input.messages)?).ok();
        self.render_once(input, &input.messages).ok().or_else(strings)
    }

    fn render_once(&self, input: &RenderInput, messages: &[Value]) -> Result<String, Error> {
        let mut context = self.special.clone();
        // Hugging Face passes these as None when they are absent, and templates count on that.
        context.insert("tools".into(), Value::Null);
        context.insert("documents".into(), Value::Null);
        context.extend(input.kwargs.clone());
        if let Some(tools) = &input.tools {
            context.insert("tools".into(), Value::Array(tools.clone()));
        }
        context.insert("messages".into(), Value::Array(messages.to_vec()));
        context.insert("add_generation_prompt".into(), input.add_generation_prompt.into());
        let bytes: u64 = context.values().map(size).sum();
        let mut env = self.env.clone();
        env.set_fuel(Some(BASE_FUEL + FUEL_PER_BYTE * bytes));
        env.get_template("chat")?.render(minijinja::Value::from(Serde(Value::Object(context))))
    }

    /// Renders a content that can be recognized, as a string and as a list of parts.
    fn probe_parts(&self) -> bool {
        const MARK: &str = "hearth-probe";
        let shows = |content: Value| {
            let input = RenderInput { add_generation_prompt: true, ..RenderInput::default() };
            self.render_once(&input, &[json!({"role": "user", "content": content})]).is_ok_and(|t| t.contains(MARK))
        };
        !shows(json!(MARK)) && shows(json!([{"type": "text", "text": MARK}]))
    }
}

fn broken(e: &Error) -> ServerError {
    ServerError::BadRequest {
        message: format!("the model's chat template cannot be used: {}", reason(e)),
        param: Some("messages".into()),
        code: Some("chat_template_error"),
    }
}

/// The template engine's message with its line, or exactly the template's own words if it raised them.
fn reason(e: &Error) -> String {
    match (python::raised(e), e.line()) {
        (Some(message), _) => message.to_owned(),
        (None, Some(line)) => match e.detail() {
            Some(detail) => format!("{}: {detail} (line {line} of the template)", e.kind()),
            None => format!("{} (line {line} of the template)", e.kind()),
        },
        (None, None) => e.to_string(),
    }
}

/// Bytes of text in a value, structure counted by a few for each part.
fn size(value: &Value) -> u64 {
    match value {
        Value::String(s) => s.len() as u64 + 8,
        Value::Array(list) => list.iter().map(size).sum::<u64>() + 8,
        Value::Object(map) => map.iter().map(|(k, v)| k.len() as u64 + size(v)).sum::<u64>() + 8,
        _ => 8,
    }
}

/// Special tokens are strings, or objects with the string in `content`.
fn special_tokens(config: &Value) -> Map<String, Value> {
    let mut tokens = Map::new();
    for name in SPECIAL_TOKENS {
        let text = config[name].as_str().or_else(|| config[name]["content"].as_str());
        if let Some(text) = text {
            tokens.insert(name.to_owned(), text.into());
        }
    }
    if config["additional_special_tokens"].is_array() {
        tokens.insert("additional_special_tokens".into(), config["additional_special_tokens"].clone());
    }
    tokens
}

/// The messages with tool arguments as JSON strings; `None` if there are no tool calls.
fn with_string_arguments(messages: &[Value]) -> Option<Vec<Value>> {
    let mut messages = messages.to_vec();
    let mut changed = false;
    let calls = messages.iter_mut().filter_map(|m| m.get_mut("tool_calls")).filter_map(Value::as_array_mut).flatten();
    for call in calls {
        let arguments = call.get_mut("function").and_then(|f| f.get_mut("arguments"));
        if let Some(arguments) = arguments.filter(|a| !a.is_string()) {
            *arguments = Value::String(python::to_json(arguments));
            changed = true;
        }
    }
    changed.then_some(messages)
}

/// `{% generation %}` marks the assistant's text for training masks and prints nothing itself. The template
/// engine does not know it, so it becomes a block that is always entered; whitespace control stays as it was.
fn without_generation_tags(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let (mut out, mut rest) = (String::with_capacity(source.len() + 32), source);
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        // Comments and output never begin with `{%`; a `%}` inside a string of another tag only ends the look early.
        let Some(end) = tag.find("%}") else { break };
        let inner = &tag[2..end];
        let (open, inner) = match inner.strip_prefix(['-', '+']) {
            Some(stripped) => (&inner[..1], stripped),
            None => ("", inner),
        };
        let (close, word) = match inner.strip_suffix(['-', '+']) {
            Some(stripped) => (&inner[inner.len() - 1..], stripped.trim()),
            None => ("", inner.trim()),
        };
        match word {
            "generation" => out.push_str(&format!("{{%{open} if true {close}%}}")),
            "endgeneration" => out.push_str(&format!("{{%{open} endif {close}%}}")),
            _ => out.push_str(&tag[..end + 2]),
        }
        rest = &tag[end + 2..];
    }
    out.push_str(rest);
    Cow::Owned(out)
}

#[cfg(test)]
mod tests;
