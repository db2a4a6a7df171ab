//! What a model can be used for, as far as its small files say: chat, tools, reasoning, images, embeddings, fill-in-the-middle.

use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{json, opening};

/// Largest template or tokenizer configuration that is looked into.
const MAX_TEXT: u64 = 4 << 20;

/// One use of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// It has a chat template.
    Chat,
    /// Its template takes tools.
    Tools,
    /// It thinks before it answers.
    Reasoning,
    /// It takes images.
    Vision,
    /// It gives vectors for texts.
    Embeddings,
    /// It fills a gap between two texts, for editors.
    Fim,
}

impl Capability {
    /// As shown.
    pub fn word(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Tools => "tools",
            Self::Reasoning => "reasoning",
            Self::Vision => "vision",
            Self::Embeddings => "embeddings",
            Self::Fim => "fim",
        }
    }
}

/// `model_type`s that only make embeddings.
const ENCODERS: [&str; 9] =
    ["bert", "roberta", "xlm-roberta", "distilbert", "mpnet", "nomic_bert", "modernbert", "new", "gemma_embedding"];
/// Tokens that mark the gap, one for each family that has them.
const GAPS: [&str; 7] =
    ["<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "▁<PRE>", "<｜fim▁begin｜>", "[PREFIX]", "<|code_prefix|>"];

/// What the model in `folder`, with this parsed `config.json`, can be used for; sorted.
pub fn of(folder: &Path, config: &Value) -> Vec<Capability> {
    let tokenizer_text = text(&folder.join("tokenizer_config.json"));
    let tokenizer: Value = serde_json::from_str(&tokenizer_text).unwrap_or_default();
    let template = template(folder, &tokenizer);
    let mut found = Vec::new();
    if is_encoder(folder, config) {
        found.push(Capability::Embeddings);
    } else if !template.is_empty() {
        found.push(Capability::Chat);
        if template.contains("tools") {
            found.push(Capability::Tools);
        }
        if ["<think>", "enable_thinking", "reasoning_content", "<|channel|>", "thinking"]
            .iter()
            .any(|w| template.contains(w))
        {
            found.push(Capability::Reasoning);
        }
    }
    if config.get("vision_config").is_some_and(Value::is_object) || config.get("vision_tower").is_some() {
        found.push(Capability::Vision);
    }
    if GAPS.iter().any(|gap| tokenizer_text.contains(gap)) {
        found.push(Capability::Fim);
    }
    found.sort();
    found
}

fn is_encoder(folder: &Path, config: &Value) -> bool {
    let kind = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let architecture = config.pointer("/architectures/0").and_then(Value::as_str).unwrap_or_default();
    ENCODERS.contains(&kind)
        || folder.join("1_Pooling").is_dir()
        // A decoder without a head, as embedding models of decoder families are.
        || (architecture.ends_with("Model") && !architecture.contains("For") && folder.join("modules.json").exists())
}

/// The chat template's source, wherever it is kept; several ones joined.
fn template(folder: &Path, tokenizer: &Value) -> String {
    let file = text(&folder.join("chat_template.jinja"));
    if !file.is_empty() {
        return file;
    }
    if let Ok(file) = json::read::<Value>(&folder.join("chat_template.json"), "a chat template")
        && let Some(source) = file.get("chat_template").and_then(Value::as_str)
    {
        return source.to_owned();
    }
    match tokenizer.get("chat_template") {
        Some(Value::String(source)) => source.clone(),
        Some(Value::Array(several)) => {
            several.iter().filter_map(|t| t.get("template").and_then(Value::as_str)).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

fn text(path: &Path) -> String {
    let mut bytes = Vec::new();
    match opening::open(path).map(|file| file.take(MAX_TEXT).read_to_end(&mut bytes)) {
        Ok(Ok(_)) => String::from_utf8_lossy(&bytes).into_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_is_seen_where_it_is_said() {
        use Capability::{Chat, Embeddings, Fim, Reasoning, Tools, Vision};
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let llama = json!({"model_type": "llama"});
        assert_eq!(of(dir.path(), &llama), []);
        write("tokenizer_config.json", r#"{"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}"#);
        assert_eq!(of(dir.path(), &llama), [Chat]);
        write("chat_template.jinja", "{% if tools %}x{% endif %}<think>");
        assert_eq!(of(dir.path(), &llama), [Chat, Tools, Reasoning]);
        write("tokenizer_config.json", r#"{"added_tokens_decoder": {"7": {"content": "<|fim_prefix|>"}}}"#);
        assert_eq!(of(dir.path(), &json!({"vision_config": {}})), [Chat, Tools, Reasoning, Vision, Fim]);
        assert_eq!(of(dir.path(), &json!({"model_type": "bert"})), [Embeddings, Fim]);
        write("tokenizer_config.json", r#"{"chat_template": [{"name": "default", "template": "a"}]}"#);
        std::fs::remove_file(dir.path().join("chat_template.jinja")).unwrap();
        assert_eq!(of(dir.path(), &llama), [Chat]);
    }
}
