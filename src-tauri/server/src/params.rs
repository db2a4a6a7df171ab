//! Reading a request's fields: each with its type, its range and, on refusal, a sentence that names all three.
//! `null` is the same as absent everywhere.

use crate::error::ServerError;
use crate::json::brief;
use hearth_core::backend::ServedModel;
use hearth_core::error::EngineError;
use hearth_core::model_settings::stay;
use hearth_core::sampling::{Hlg, SamplingParams};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::time::Duration;

/// Most stop strings in one request.
const MOST_STOPS: usize = 16;

/// One JSON object of a request, and where it is.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// Put before a field's name in messages: `""` or `"stream_options."`.
    prefix: &'a str,
}

impl<'a> Fields<'a> {
    /// The body itself.
    pub(crate) fn new(map: &'a Map<String, Value>) -> Self {
        Fields { map, prefix: "" }
    }

    /// The value, unless absent or null.
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|v| !v.is_null())
    }

    /// The refusal of a field: what it must be, and what it is.
    pub(crate) fn refuse(&self, name: &str, allowed: &str, found: &Value) -> ServerError {
        EngineError::param(&format!("{}{name}", self.prefix), allowed, described(found)).into()
    }

    /// A nested object.
    pub(crate) fn object(&self, name: &str) -> Result<Option<&'a Map<String, Value>>, ServerError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(other) => Err(self.refuse(name, "an object", other)),
        }
    }

    pub(crate) fn bool(&self, name: &str) -> Result<Option<bool>, ServerError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(*b)),
            Some(other) => Err(self.refuse(name, "true or false", other)),
        }
    }

    pub(crate) fn string(&self, name: &str) -> Result<Option<&'a str>, ServerError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(other) => Err(self.refuse(name, "a string", other)),
        }
    }

    /// A number; its range is checked with all the others by [`SamplingParams::validate`].
    pub(crate) fn number(&self, name: &str) -> Result<Option<f32>, ServerError> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => match value.as_f64().map(|v| v as f32) {
                Some(v) if v.is_finite() => Ok(Some(v)),
                Some(_) => Err(self.refuse(name, "a number below 3.4e38", value)),
                None => Err(self.refuse(name, "a number", value)),
            },
        }
    }

    /// A whole number in `[low, high]`, for which messages say `allowed`. `10.0` counts as 10.
    pub(crate) fn integer(
        &self,
        name: &str,
        low: i128,
        high: i128,
        allowed: &str,
    ) -> Result<Option<i128>, ServerError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let whole = match value {
            Value::Number(n) => n
                .as_i64()
                .map(i128::from)
                .or(n.as_u64().map(i128::from))
                .or_else(|| n.as_f64().filter(|f| f.fract() == 0.0 && f.abs() < 1e18).map(|f| f as i128)),
            _ => None,
        };
        match whole.filter(|v| (low..=high).contains(v)) {
            Some(v) => Ok(Some(v)),
            None => Err(self.refuse(name, allowed, value)),
        }
    }

    /// A count from `low` up; a huge one is as good as the largest.
    pub(crate) fn count(&self, name: &str, low: usize) -> Result<Option<usize>, ServerError> {
        let allowed = format!("a whole number, {low} or more");
        let found = self.integer(name, low as i128, i128::MAX, &allowed)?;
        Ok(found.map(|v| usize::try_from(v).unwrap_or(usize::MAX)))
    }

    /// Refuses what only exists with the value 1.
    pub(crate) fn only_one(&self, name: &str) -> Result<(), ServerError> {
        match self.get(name) {
            Some(v) if v.as_f64() != Some(1.0) => Err(ServerError::unsupported(
                name,
                format!("`{name}` must be 1: one answer per request is supported; it is {}", described(v)),
            )),
            _ => Ok(()),
        }
    }
}

/// A value with its type where the JSON alone could mislead.
fn described(value: &Value) -> String {
    match value {
        Value::String(_) => format!("the string {}", brief(value)),
        other => brief(other),
    }
}

/// The fields that chat and completions share, as the request gives them.
#[derive(Debug, Default)]
pub(crate) struct Common {
    pub(crate) model: Option<String>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) stop: Vec<String>,
    pub(crate) return_token_ids: bool,
    pub(crate) ignore_eos: bool,
    /// How long the model is to stay in memory without work, where the request says so.
    pub(crate) keep_alive: Option<Option<Duration>>,
    sampling: Overrides,
}

/// Sampling fields that were given; the rest comes from the model's own defaults.
#[derive(Debug, Default)]
struct Overrides {
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<u32>,
    min_p: Option<f32>,
    xtc_probability: Option<f32>,
    xtc_threshold: Option<f32>,
    repetition_penalty: Option<f32>,
    repetition_context_size: Option<usize>,
    presence_penalty: Option<f32>,
    presence_context_size: Option<usize>,
    frequency_penalty: Option<f32>,
    frequency_context_size: Option<usize>,
    logit_bias: BTreeMap<u32, f32>,
    seed: Option<u64>,
    hlg: Option<Hlg>,
}

impl Common {
    /// Reads and checks everything that can be checked without a model.
    ///
    /// # Errors
    /// 400 naming the first field at fault.
    pub(crate) fn read(f: Fields<'_>) -> Result<Self, ServerError> {
        f.only_one("n")?;
        let include_usage = match f.object("stream_options")? {
            Some(map) => Fields { map, prefix: "stream_options." }.bool("include_usage")?.unwrap_or(false),
            None => false,
        };
        Ok(Common {
            model: f.string("model")?.map(str::to_owned),
            stream: f.bool("stream")?.unwrap_or(false),
            include_usage,
            stop: stops(f)?,
            return_token_ids: f.bool("return_token_ids")?.unwrap_or(false),
            ignore_eos: f.bool("ignore_eos")?.unwrap_or(false),
            keep_alive: match f.get("keep_alive") {
                Some(value) => Some(stay(value).map_err(|expected| f.refuse("keep_alive", expected, value))?),
                None => None,
            },
            sampling: Overrides::read(f)?,
        })
    }

    /// The sampler's parameters for this model: request over `generation_config` over the defaults.
    ///
    /// # Errors
    /// 400 naming a field out of range.
    pub(crate) fn sampling(&self, model: &ServedModel) -> Result<SamplingParams, ServerError> {
        let o = &self.sampling;
        let base = model_defaults(&model.generation_config, model.vocab_size);
        let params = SamplingParams {
            temperature: o.temperature.unwrap_or(base.temperature),
            top_p: o.top_p.unwrap_or(base.top_p),
            top_k: o.top_k.map_or(base.top_k, |k| effective_top_k(k, model.vocab_size)),
            min_p: o.min_p.unwrap_or(base.min_p),
            xtc_probability: o.xtc_probability.unwrap_or(base.xtc_probability),
            xtc_threshold: o.xtc_threshold.unwrap_or(base.xtc_threshold),
            repetition_penalty: o.repetition_penalty.unwrap_or(base.repetition_penalty),
            repetition_context_size: o.repetition_context_size.unwrap_or(base.repetition_context_size),
            presence_penalty: o.presence_penalty.unwrap_or(base.presence_penalty),
            presence_context_size: o.presence_context_size.unwrap_or(base.presence_context_size),
            frequency_penalty: o.frequency_penalty.unwrap_or(base.frequency_penalty),
            frequency_context_size: o.frequency_context_size.unwrap_or(base.frequency_context_size),
            logit_bias: o.logit_bias.clone(),
            seed: o.seed,
            hlg: o.hlg,
        };
        params.validate(model.vocab_size)?;
        Ok(params)
    }
}

impl Overrides {
    fn read(f: Fields<'_>) -> Result<Self, ServerError> {
        let top_k = f.integer("top_k", -1, i128::MAX, "a whole number, 0 or -1 for off")?;
        let seed = f.integer("seed", i64::MIN.into(), u64::MAX.into(), "a whole number of 64 bits")?;
        Ok(Overrides {
            temperature: f.number("temperature")?,
            top_p: f.number("top_p")?,
            top_k: top_k.map(|k| u32::try_from(k.max(0)).unwrap_or(u32::MAX)),
            min_p: f.number("min_p")?,
            xtc_probability: f.number("xtc_probability")?,
            xtc_threshold: f.number("xtc_threshold")?,
            repetition_penalty: f.number("repetition_penalty")?,
            repetition_context_size: f.count("repetition_context_size", 0)?,
            presence_penalty: f.number("presence_penalty")?,
            presence_context_size: f.count("presence_context_size", 0)?,
            frequency_penalty: f.number("frequency_penalty")?,
            frequency_context_size: f.count("frequency_context_size", 0)?,
            logit_bias: logit_bias(f)?,
            // Negative seeds keep their bits: each of the 2⁶⁴ seeds is its own stream.
            seed: seed.map(|s| s as u64),
            hlg: hlg(f)?,
        })
    }
}

/// A k that keeps the whole vocabulary is no truncation.
fn effective_top_k(k: u32, vocab_size: usize) -> u32 {
    if k as usize >= vocab_size { 0 } else { k }
}

/// The sampling defaults that the model's authors give. A value out of range is theirs, not the client's:
/// it is left out.
pub fn model_defaults(config: &Value, vocab_size: usize) -> SamplingParams {
    let mut params = SamplingParams::default();
    if config["do_sample"] == Value::Bool(false) {
        return params;
    }
    let number = |name: &str| config[name].as_f64().map(|v| v as f32);
    let candidates = [
        number("temperature").map(|v| SamplingParams { temperature: v, ..SamplingParams::default() }),
        number("top_p").map(|v| SamplingParams { top_p: v, ..SamplingParams::default() }),
        number("min_p").map(|v| SamplingParams { min_p: v, ..SamplingParams::default() }),
        number("repetition_penalty").map(|v| SamplingParams { repetition_penalty: v, ..SamplingParams::default() }),
    ];
    let [temperature, top_p, min_p, repetition] = candidates.map(|c| c.filter(|p| p.validate(vocab_size).is_ok()));
    params.temperature = temperature.map_or(params.temperature, |p| p.temperature);
    params.top_p = top_p.map_or(params.top_p, |p| p.top_p);
    params.min_p = min_p.map_or(params.min_p, |p| p.min_p);
    params.repetition_penalty = repetition.map_or(params.repetition_penalty, |p| p.repetition_penalty);
    if let Some(k) = config["top_k"].as_u64() {
        params.top_k = effective_top_k(u32::try_from(k).unwrap_or(u32::MAX), vocab_size);
    }
    params
}

fn stops(f: Fields<'_>) -> Result<Vec<String>, ServerError> {
    let allowed = format!("a string, a list of at most {MOST_STOPS} strings, or null");
    let list = match f.get("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(s)) => vec![s.clone()],
        Some(Value::Array(list)) if list.len() <= MOST_STOPS => {
            let strings: Option<Vec<String>> = list.iter().map(|v| v.as_str().map(str::to_owned)).collect();
            strings.ok_or_else(|| f.refuse("stop", &allowed, &Value::Array(list.clone())))?
        }
        Some(other) => return Err(f.refuse("stop", &allowed, other)),
    };
    // An empty string would end every answer before it began; clients send it to mean none.
    Ok(list.into_iter().filter(|s| !s.is_empty()).collect())
}

fn logit_bias(f: Fields<'_>) -> Result<BTreeMap<u32, f32>, ServerError> {
    let Some(map) = f.object("logit_bias")? else { return Ok(BTreeMap::new()) };
    let mut bias = BTreeMap::new();
    for (key, value) in map {
        let id: u32 = key.parse().map_err(|_| {
            EngineError::param("logit_bias", "keyed by token ids", format!("keyed by {}", brief(&key.clone().into())))
        })?;
        let amount = value.as_f64().map(|v| v as f32).filter(|v| v.is_finite());
        let amount = amount.ok_or_else(|| {
            EngineError::param("logit_bias", "a map of token ids to numbers", format!("{} for {key}", described(value)))
        })?;
        bias.insert(id, amount);
    }
    Ok(bias)
}

fn hlg(f: Fields<'_>) -> Result<Option<Hlg>, ServerError> {
    let Some(map) = f.object("hlg")? else { return Ok(None) };
    let known = ["width", "shoulder", "toe", "offset"];
    if let Some(name) = map.keys().find(|k| !known.contains(&k.as_str())) {
        return Err(ServerError::param("hlg", format!("`hlg` has no field `{name}`; it has {}", known.join(", "))));
    }
    let (h, d) = (Fields { map, prefix: "hlg." }, Hlg::default());
    Ok(Some(Hlg {
        width: h.number("width")?.unwrap_or(d.width),
        shoulder: h.number("shoulder")?.unwrap_or(d.shoulder),
        toe: h.number("toe")?.unwrap_or(d.toe),
        offset: h.number("offset")?.unwrap_or(d.offset),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(body: Value) -> Result<Common, ServerError> {
        Common::read(Fields::new(body.as_object().unwrap()))
    }

    #[test]
    fn each_refusal_names_field_type_and_value() {
        for (body, message) in [
            (json!({"temperature": "hot"}), r#"`temperature` must be a number; it is the string "hot""#),
            (json!({"temperature": 1e300}), "`temperature` must be a number below 3.4e38; it is 1e+300"),
            (json!({"stop": 5}), "`stop` must be a string, a list of at most 16 strings, or null; it is 5"),
            (
                json!({"stop": ["a", 5]}),
                "`stop` must be a string, a list of at most 16 strings, or null; it is [\"a\",5]",
            ),
            (json!({"stream": "yes"}), r#"`stream` must be true or false; it is the string "yes""#),
            (
                json!({"stream_options": {"include_usage": "yes"}}),
                r#"`stream_options.include_usage` must be true or false; it is the string "yes""#,
            ),
            (json!({"n": 2}), "`n` must be 1: one answer per request is supported; it is 2"),
            (json!({"seed": 1.5}), "`seed` must be a whole number of 64 bits; it is 1.5"),
            (json!({"top_k": -2}), "`top_k` must be a whole number, 0 or -1 for off; it is -2"),
            (json!({"hlg": {"toe": "x"}}), r#"`hlg.toe` must be a number; it is the string "x""#),
            (json!({"hlg": {"tow": 1}}), "`hlg` has no field `tow`; it has width, shoulder, toe, offset"),
            (json!({"logit_bias": {"x": 1}}), r#"`logit_bias` must be keyed by token ids; it is keyed by "x""#),
            (json!({"model": 5}), "`model` must be a string; it is 5"),
        ] {
            let e = read(body).unwrap_err();
            assert_eq!(e.to_string(), message);
            assert_eq!(e.status().as_u16(), 400);
            assert!(e.param_name().is_some_and(|p| message.contains(p)), "{e:?}");
        }
    }

    #[test]
    fn null_is_absent_and_strangers_are_welcome() {
        let c = read(json!({"temperature": null, "stop": null, "seed": null, "n": null, "stream_options": null,
            "logit_bias": null, "tools": [], "text": {}, "user": 5, "metadata": [], "store": "x"}));
        assert_eq!(c.unwrap().stop, Vec::<String>::new());
    }

    #[test]
    fn seeds_of_either_sign_are_distinct() {
        let seed = |v: Value| read(json!({"seed": v})).unwrap().sampling.seed.unwrap();
        assert_eq!(seed(json!(-1)), u64::MAX);
        assert_eq!(seed(json!(i64::MIN)), 1 << 63);
        assert_eq!(seed(json!(7)), 7);
    }

    #[test]
    fn the_models_own_defaults() {
        let config = json!({"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 7.0, "repetition_penalty": 1.05});
        let p = model_defaults(&config, 100);
        assert_eq!((p.temperature, p.top_p, p.top_k, p.min_p, p.repetition_penalty), (0.6, 0.95, 20, 0.0, 1.05));
        let mut greedy = config.clone();
        greedy["do_sample"] = false.into();
        assert_eq!(model_defaults(&greedy, 100), SamplingParams::default());
        assert_eq!(model_defaults(&json!({"top_k": 100}), 100).top_k, 0);
        assert_eq!(model_defaults(&json!({}), 100), SamplingParams::default());
    }
}
