// What to put where, for each client: this machine's address and the loaded model filled in.

/** One thing to copy. */
export interface Snippet {
  /** Where it goes. */
  where: string;
  text: string;
}

export interface Recipe {
  note?: string;
  snippets: Snippet[];
}

/** What the recipes need to know. */
export interface Facts {
  /** Without a slash or /v1 at its end. */
  address: string;
  model: string;
  context: number;
  /** The key, or any word where none is needed. */
  key: string;
}

const json = (value: unknown) => JSON.stringify(value, null, 2);

/** How to set up a client; `undefined`: nothing is known of it. */
export function recipe(id: string, f: Facts): Recipe | undefined {
  const base = `${f.address}/v1`;
  switch (id) {
    case "continue":
      return {
        snippets: [{
          where: "~/.continue/config.yaml",
          text: `name: Hearth\nversion: 1.0.0\nschema: v1\nmodels:\n  - name: Hearth\n    provider: openai\n    model: ${f.model}\n    apiBase: ${base}\n    apiKey: ${f.key}\n    roles: [chat, edit, apply, autocomplete]\n    capabilities: [tool_use]\n    defaultCompletionOptions:\n      contextLength: ${f.context}`,
        }],
      };
    case "cline":
      return {
        note: "Its system prompt alone has more than 10 000 tokens: a context limit of 32 000 or more is of use.",
        snippets: [
          { where: "API Provider", text: "OpenAI Compatible" }, { where: "Base URL", text: base },
          { where: "API Key", text: f.key }, { where: "Model ID", text: f.model },
        ],
      };
    case "copilot":
      return {
        note: "In VS Code: Chat, Manage Models, a custom OpenAI-compatible endpoint.",
        snippets: [{ where: "URL", text: `${base}/chat/completions` }, { where: "API key", text: f.key }, { where: "Model", text: f.model }],
      };
    case "zed":
      return {
        note: `The key goes into Zed's own dialog (Agent settings, LLM providers), or the variable HEARTH_API_KEY: ${f.key}`,
        snippets: [{
          where: "~/.config/zed/settings.json",
          text: json({ language_models: { openai_compatible: { Hearth: { api_url: base, available_models: [{ name: f.model, display_name: "Hearth", max_tokens: f.context }] } } } }),
        }],
      };
    case "zed-lmstudio":
      return { snippets: [{ where: "~/.config/zed/settings.json", text: json({ language_models: { lmstudio: { api_url: `${f.address}/api/v0` } } }) }] };
    case "jetbrains":
      return {
        note: "Settings, Tools, AI Assistant, Models: provider “OpenAI-compatible”.",
        snippets: [{ where: "URL", text: base }, { where: "API key", text: f.key }],
      };
    case "jetbrains-ollama":
      return { note: "Settings, Tools, AI Assistant, Models: provider “Ollama”.", snippets: [{ where: "URL", text: f.address }] };
    case "xcode":
      return {
        note: "Settings, Intelligence, Add a Model Provider, Locally Hosted.",
        snippets: [{ where: "Port", text: new URL(f.address).port || "80" }, { where: "Description", text: "Hearth" }],
      };
    case "claude-code":
      return {
        snippets: [{
          where: "Terminal",
          text: `export ANTHROPIC_BASE_URL=${f.address}\nexport ANTHROPIC_AUTH_TOKEN=${f.key}\nexport ANTHROPIC_MODEL=${f.model}\nexport ANTHROPIC_SMALL_FAST_MODEL=${f.model}\nclaude`,
        }],
      };
    case "codex":
      return {
        note: "Codex wants a context limit of 64 000 tokens or more.",
        snippets: [{
          where: "~/.codex/config.toml",
          text: `model = "${f.model}"\nmodel_provider = "hearth"\nmodel_context_window = ${f.context}\n\n[model_providers.hearth]\nname = "Hearth"\nbase_url = "${base}"\nenv_key = "HEARTH_API_KEY"\nwire_api = "responses"`,
        }, { where: "Terminal", text: `export HEARTH_API_KEY=${f.key}` }],
      };
    case "open-webui":
      return {
        note: `From inside Docker the address is http://host.docker.internal:${new URL(f.address).port || "80"}/v1; start Hearth with --allow-host host.docker.internal.`,
        snippets: [{ where: "Admin settings, Connections, OpenAI API: URL", text: base }, { where: "Key", text: f.key }],
      };
    case "python":
      return {
        snippets: [{
          where: "Python, after pip install openai",
          text: `from openai import OpenAI\n\nclient = OpenAI(base_url="${base}", api_key="${f.key}")\nstream = client.chat.completions.create(\n    model="${f.model}",\n    messages=[{"role": "user", "content": "Say hello."}],\n    stream=True,\n)\nfor chunk in stream:\n    if chunk.choices:\n        print(chunk.choices[0].delta.content or "", end="", flush=True)`,
        }],
      };
    case "node":
      return {
        snippets: [{
          where: "Node, after npm install openai",
          text: `import OpenAI from "openai";\n\nconst client = new OpenAI({ baseURL: "${base}", apiKey: "${f.key}" });\nconst stream = await client.chat.completions.create({\n  model: "${f.model}",\n  messages: [{ role: "user", content: "Say hello." }],\n  stream: true,\n});\nfor await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta?.content ?? "");`,
        }],
      };
    case "curl":
      return {
        snippets: [{
          where: "Terminal",
          text: `curl -N ${base}/chat/completions \\\n  -H "Authorization: Bearer ${f.key}" \\\n  -H "Content-Type: application/json" \\\n  -d '{"model": "${f.model}", "stream": true, "messages": [{"role": "user", "content": "Say hello."}]}'`,
        }],
      };
    default:
      return undefined;
  }
}
