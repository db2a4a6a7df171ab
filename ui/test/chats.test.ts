import { describe, expect, it } from "vitest";
import { newChat, request, title } from "../src/lib/chats";

describe("conversations", () => {
  it("become requests with the system prompt first and no empty answers", () => {
    const chat = newChat({ system: "Be brief.", temperature: 0 });
    chat.messages = [{ role: "user", text: "Hi" }, { role: "assistant", text: "" }];
    expect(request(chat)).toMatchObject({
      messages: [{ role: "system", content: "Be brief." }, { role: "user", content: "Hi" }], temperature: 0, stream: true,
    });
    expect(JSON.parse(JSON.stringify(request(chat)))).not.toHaveProperty("seed");
    chat.options.system = "  ";
    expect((request(chat)["messages"] as unknown[]).length).toBe(1);
  });
  it("are named after their first question", () => {
    expect(title("Why is the sky blue?\nAnswer shortly.")).toBe("Why is the sky blue?");
    expect(title("x".repeat(60))).toHaveLength(48);
    expect(title(" \n")).toBe("New conversation");
  });
});
