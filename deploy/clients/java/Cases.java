// The cases of ../README.md with clients for Java, unchanged. THAW_CLIENT names the client.

import com.fasterxml.jackson.databind.ObjectMapper;
import com.openai.client.OpenAIClient;
import com.openai.client.okhttp.OpenAIOkHttpClient;
import com.openai.core.http.StreamResponse;
import com.openai.errors.OpenAIException;
import com.openai.errors.OpenAIServiceException;
import com.openai.helpers.ChatCompletionAccumulator;
import com.openai.models.chat.completions.ChatCompletionChunk;
import com.openai.models.chat.completions.ChatCompletionCreateParams;
import com.openai.models.chat.completions.ChatCompletionStreamOptions;
import dev.langchain4j.exception.HttpException;
import dev.langchain4j.exception.LangChain4jException;
import dev.langchain4j.model.chat.response.ChatResponse;
import dev.langchain4j.model.chat.response.StreamingChatResponseHandler;
import dev.langchain4j.model.openai.OpenAiChatModel;
import dev.langchain4j.model.openai.OpenAiStreamingChatModel;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;

public class Cases {
    static final String base = System.getenv("THAW_BASE_URL");
    static final String key = env("THAW_API_KEY", "none");
    static final String model = env("THAW_MODEL", "tiny");
    static final String fake = env("THAW_FAKE", "fake");

    static String env(String name, String otherwise) {
        String v = System.getenv(name);
        return v == null || v.isEmpty() ? otherwise : v;
    }

    interface Client {
        Map<String, Object> plain(String model, String text) throws Exception;

        // stream disconnects after leave chunks (0: never).
        Map<String, Object> stream(String model, String text, int leave) throws Exception;
    }

    public static void main(String[] args) throws Exception {
        Client client = env("THAW_CLIENT", "").equals("langchain4j") ? new LangChain() : new Official();
        ObjectMapper json = new ObjectMapper();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String name = in.readLine(); name != null; name = in.readLine()) {
            Map<String, Object> seen;
            try {
                seen = run(client, name);
            } catch (Exception e) {
                seen = new TreeMap<>(Map.of("failed", e.toString()));
            }
            System.out.println(json.writeValueAsString(seen));
        }
        System.exit(0); // threads of the clients are left
    }

    static Map<String, Object> run(Client c, String name) throws Exception {
        return switch (name) {
            case "cold_stream" -> c.stream(model, "What is thaw?", 0);
            case "cold_plain" -> c.plain(model, "What is thaw?");
            case "unknown_model" -> c.plain("tinny", "hi");
            case "dies" -> c.stream(fake, "@fake tokens=50 delay=20ms die=5", 0);
            case "cancel" -> c.stream(fake, "@fake tokens=3000 delay=20ms", 1);
            default -> throw new IllegalArgumentException("no case " + name);
        };
    }

    static Map<String, Object> error(Throwable e, boolean known, int status) {
        return new TreeMap<>(Map.of("class", e.getClass().getSimpleName(), "known", known, "status", status, "message", String.valueOf(e)));
    }

    // Official is openai-java with its accumulator.
    static class Official implements Client {
        final OpenAIClient c = OpenAIOkHttpClient.builder().baseUrl(base).apiKey(key).build();

        ChatCompletionCreateParams.Builder body(String model, String text) {
            return ChatCompletionCreateParams.builder().model(model).addUserMessage(text).maxCompletionTokens(12);
        }

        Map<String, Object> failed(Map<String, Object> seen, OpenAIException e) {
            Map<String, Object> shown = error(e, true, e instanceof OpenAIServiceException s ? s.statusCode() : 0);
            if (e instanceof OpenAIServiceException s) {
                shown.put("code", s.code().orElse(""));
                shown.put("type", s.type().orElse(""));
                shown.put("param", s.param().orElse(""));
                s.headers().values("x-request-id").stream().findFirst().ifPresent(id -> shown.put("request_id", id));
            }
            seen.put("error", shown);
            return seen;
        }

        public Map<String, Object> plain(String model, String text) {
            Map<String, Object> seen = new TreeMap<>();
            try {
                var a = c.chat().completions().create(body(model, text).build());
                seen.put("text", a.choices().get(0).message().content().orElse(""));
                seen.put("finish", a.choices().get(0).finishReason().toString().toLowerCase(Locale.ROOT));
                seen.put("usage", a.usage().orElseThrow().totalTokens());
            } catch (OpenAIException e) {
                return failed(seen, e);
            }
            return seen;
        }

        public Map<String, Object> stream(String model, String text, int leave) {
            Map<String, Object> seen = new TreeMap<>();
            int chunks = 0;
            ChatCompletionAccumulator all = ChatCompletionAccumulator.create();
            var options = ChatCompletionStreamOptions.builder().includeUsage(true).build();
            try (StreamResponse<ChatCompletionChunk> stream = c.chat().completions().createStreaming(body(model, text).streamOptions(options).build())) {
                Iterator<ChatCompletionChunk> it = stream.stream().iterator();
                while (it.hasNext()) {
                    all.accumulate(it.next());
                    seen.put("chunks", ++chunks);
                    if (chunks == leave) return seen;
                }
                var a = all.chatCompletion();
                seen.put("text", a.choices().get(0).message().content().orElse(""));
                seen.put("finish", a.choices().get(0).finishReason().toString().toLowerCase(Locale.ROOT));
                seen.put("usage", a.usage().orElseThrow().totalTokens());
            } catch (OpenAIException e) {
                return failed(seen, e);
            }
            return seen;
        }
    }

    // LangChain is LangChain4j on the HTTP client of the JDK.
    static class LangChain implements Client {
        Map<String, Object> seen(ChatResponse a) {
            Map<String, Object> seen = new TreeMap<>();
            seen.put("text", a.aiMessage().text());
            if (a.finishReason() != null) seen.put("finish", a.finishReason().toString().toLowerCase(Locale.ROOT));
            if (a.tokenUsage() != null) seen.put("usage", a.tokenUsage().totalTokenCount());
            return seen;
        }

        Map<String, Object> shown(Throwable e) {
            int status = 0;
            for (Throwable x = e; x != null; x = x.getCause()) {
                if (x instanceof HttpException h) status = h.statusCode();
            }
            return error(e, e instanceof LangChain4jException, status);
        }

        public Map<String, Object> plain(String model, String text) {
            try {
                return seen(OpenAiChatModel.builder().baseUrl(base).apiKey(key).modelName(model).maxTokens(12).build()
                        .chat(dev.langchain4j.model.chat.request.ChatRequest.builder().messages(dev.langchain4j.data.message.UserMessage.from(text)).build()));
            } catch (LangChain4jException e) {
                return new TreeMap<>(Map.of("error", shown(e)));
            }
        }

        public Map<String, Object> stream(String model, String text, int leave) throws Exception {
            Map<String, Object> seen = new TreeMap<>();
            CountDownLatch done = new CountDownLatch(1);
            OpenAiStreamingChatModel.builder().baseUrl(base).apiKey(key).modelName(model).maxTokens(12).build().chat(text, new StreamingChatResponseHandler() {
                int chunks;

                public void onPartialResponse(String part) {
                    seen.put("chunks", ++chunks);
                    if (chunks == leave) {
                        done.countDown();
                        throw new RuntimeException("leaving");
                    }
                }

                public void onCompleteResponse(ChatResponse a) {
                    seen.putAll(seen(a));
                    done.countDown();
                }

                public void onError(Throwable e) {
                    seen.put("error", shown(e));
                    done.countDown();
                }
            });
            done.await();
            return seen;
        }
    }
}
