// Conversations and presets, kept in this browser only.

/** One message; answers carry their figures. */
export interface Message {
  role: "user" | "assistant";
  text: string;
  /** What the model thought before it answered, where the server tells it apart. */
  thinking?: string;
  /** Why an answer ended, or what went wrong. */
  end?: "stop" | "length" | "stopped" | "error";
  error?: string;
  /** The model that answered. */
  model?: string;
  usage?: { prompt: number; cached: number; answer: number };
  speed?: number;
  first_s?: number;
}

/** How answers are made; what is undefined is the model's own. */
export interface Options {
  system: string;
  /** One of several models; without it the one that was used last answers. */
  model?: string;
  temperature?: number;
  top_p?: number;
  max_tokens?: number;
  seed?: number;
}

export interface Chat {
  id: string;
  title: string;
  at: number;
  options: Options;
  messages: Message[];
}

export interface Preset {
  name: string;
  options: Options;
}

const CHATS = "hearth.chats";
const PRESETS = "hearth.presets";
const MOST = 100;

function read<T>(key: string): T[] {
  try {
    const value: unknown = JSON.parse(localStorage.getItem(key) ?? "[]");
    return Array.isArray(value) ? (value as T[]) : [];
  } catch {
    return [];
  }
}

/** Saves; where there is no room, the oldest conversations go. False: nothing could be kept. */
function write(key: string, list: unknown[]): boolean {
  for (let length = Math.min(list.length, MOST); ; length = Math.floor(length / 2)) {
    try {
      localStorage.setItem(key, JSON.stringify(list.slice(0, length)));
      return true;
    } catch {
      if (length === 0) return false;
    }
  }
}

export const chats = () => read<Chat>(CHATS);
export const presets = () => read<Preset>(PRESETS);
export const savePresets = (list: Preset[]) => write(PRESETS, list);
export const saveChats = (list: Chat[]) => write(CHATS, list);

export function newChat(options: Options = { system: "" }): Chat {
  const id = `${Date.now().toString(36)}${Math.random().toString(36).slice(2, 8)}`;
  return { id, title: "New conversation", at: Date.now(), options: { ...options }, messages: [] };
}

/** The first words of the first question. */
export function title(text: string): string {
  const line = text.trim().split("\n")[0] ?? "";
  return line.length > 48 ? `${line.slice(0, 47)}…` : line || "New conversation";
}

/** The request of a conversation as it stands, without its last answer if that is empty. */
export function request(chat: Chat): Record<string, unknown> {
  const { system, model, temperature, top_p, max_tokens, seed } = chat.options;
  const messages: { role: string; content: string }[] = chat.messages
    .filter((m) => m.role === "user" || m.text !== "")
    .map((m) => ({ role: m.role, content: m.text }));
  if (system.trim() !== "") messages.unshift({ role: "system", content: system });
  return { model, messages, temperature, top_p, max_tokens, seed, stream: true, stream_options: { include_usage: true } };
}
