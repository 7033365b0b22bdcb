// Command go runs the cases of ../README.md with clients for Go that cannot be in the
// module of thaw: the first argument names one.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	official "github.com/openai/openai-go"
	"github.com/openai/openai-go/option"
	community "github.com/sashabaranov/go-openai"
)

type answer struct {
	Text   string `json:"text"`
	Chunks int    `json:"chunks"`
	Finish string `json:"finish"`
	Usage  int64  `json:"usage"`
	Error  *shown `json:"error"`
	Failed string `json:"failed,omitempty"`
}

type shown struct {
	Class   string `json:"class"`
	Known   bool   `json:"known"`
	Status  int    `json:"status"`
	Code    string `json:"code"`
	Type    string `json:"type"`
	Param   string `json:"param"`
	Message string `json:"message"`
	Request string `json:"request_id"`
}

// client asks model for text, streamed or not, and disconnects after leave chunks (0: never).
type client interface {
	plain(ctx context.Context, model, text string) answer
	stream(ctx context.Context, model, text string, leave int) answer
}

func main() {
	base, key := os.Getenv("THAW_BASE_URL"), env("THAW_API_KEY", "none")
	var c client
	switch which := os.Getenv("THAW_CLIENT"); which {
	case "openai-go":
		c = openaiGo{official.NewClient(option.WithBaseURL(base), option.WithAPIKey(key))}
	case "go-openai":
		config := community.DefaultConfig(key)
		config.BaseURL = base
		c = goOpenAI{community.NewClientWithConfig(config)}
	default:
		fmt.Fprintf(os.Stderr, "THAW_CLIENT is %q: want openai-go or go-openai\n", which)
		os.Exit(2)
	}
	model, fake := env("THAW_MODEL", "tiny"), env("THAW_FAKE", "fake")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var a answer
		ctx := context.Background()
		switch name := in.Text(); name {
		case "cold_stream":
			a = c.stream(ctx, model, "What is thaw?", 0)
		case "cold_plain":
			a = c.plain(ctx, model, "What is thaw?")
		case "unknown_model":
			a = c.plain(ctx, "tinny", "hi")
		case "dies":
			a = c.stream(ctx, fake, "@fake tokens=50 delay=20ms die=5", 0)
		case "cancel":
			a = c.stream(ctx, fake, "@fake tokens=3000 delay=20ms", 1)
		default:
			a.Failed = "no case " + name
		}
		b, err := json.Marshal(a)
		if err != nil {
			panic(err)
		}
		fmt.Println(string(b))
	}
}

func env(name, other string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return other
}

// openaiGo is the official client, version 1; its accumulator builds the text.
type openaiGo struct{ c official.Client }

func (o openaiGo) body(model, text string) official.ChatCompletionNewParams {
	return official.ChatCompletionNewParams{
		Model: model, Messages: []official.ChatCompletionMessageParamUnion{official.UserMessage(text)},
		MaxTokens: official.Int(12),
	}
}

func (o openaiGo) plain(ctx context.Context, model, text string) answer {
	r, err := o.c.Chat.Completions.New(ctx, o.body(model, text))
	if err != nil {
		return answer{Error: o.shown(err)}
	}
	return answer{Text: r.Choices[0].Message.Content, Finish: r.Choices[0].FinishReason, Usage: r.Usage.TotalTokens}
}

func (o openaiGo) stream(ctx context.Context, model, text string, leave int) (a answer) {
	body := o.body(model, text)
	body.StreamOptions.IncludeUsage = official.Bool(true)
	stream := o.c.Chat.Completions.NewStreaming(ctx, body)
	defer stream.Close()
	var all official.ChatCompletionAccumulator
	for stream.Next() {
		if !all.AddChunk(stream.Current()) {
			a.Failed = "the accumulator refuses a chunk"
			return a
		}
		if a.Chunks++; a.Chunks == leave {
			return a
		}
	}
	a.Usage = all.Usage.TotalTokens
	if len(all.Choices) > 0 {
		a.Text, a.Finish = all.Choices[0].Message.Content, all.Choices[0].FinishReason
	}
	a.Error = o.shown(stream.Err())
	return a
}

func (o openaiGo) shown(err error) *shown {
	if err == nil {
		return nil
	}
	s := &shown{Class: fmt.Sprintf("%T", err), Message: err.Error()}
	if api := new(official.Error); errors.As(err, &api) {
		s.Known, s.Status, s.Code, s.Type, s.Param = true, api.StatusCode, api.Code, api.Type, api.Param
		s.Request = api.Response.Header.Get("X-Request-Id")
	}
	// An error in a stream is an error of no type, with the error's JSON in its text.
	if _, frame, ok := strings.Cut(s.Message, "received error while streaming: "); ok {
		s.Known = json.Unmarshal([]byte(frame), s) == nil
	}
	return s
}

// goOpenAI is the community's client.
type goOpenAI struct{ c *community.Client }

func (g goOpenAI) body(model, text string) community.ChatCompletionRequest {
	return community.ChatCompletionRequest{
		Model: model, Messages: []community.ChatCompletionMessage{{Role: "user", Content: text}}, MaxTokens: 12,
	}
}

func (g goOpenAI) plain(ctx context.Context, model, text string) answer {
	r, err := g.c.CreateChatCompletion(ctx, g.body(model, text))
	if err != nil {
		return answer{Error: g.shown(err)}
	}
	return answer{Text: r.Choices[0].Message.Content, Finish: string(r.Choices[0].FinishReason), Usage: int64(r.Usage.TotalTokens)}
}

func (g goOpenAI) stream(ctx context.Context, model, text string, leave int) (a answer) {
	body := g.body(model, text)
	body.StreamOptions = &community.StreamOptions{IncludeUsage: true}
	stream, err := g.c.CreateChatCompletionStream(ctx, body)
	if err != nil {
		return answer{Error: g.shown(err)}
	}
	defer stream.Close()
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return a
		}
		if err != nil {
			a.Error = g.shown(err)
			return a
		}
		if chunk.Usage != nil {
			a.Usage += int64(chunk.Usage.TotalTokens)
		}
		for _, choice := range chunk.Choices {
			a.Text += choice.Delta.Content
			a.Finish = string(choice.FinishReason)
		}
		if a.Chunks++; a.Chunks == leave {
			return a
		}
	}
}

func (g goOpenAI) shown(err error) *shown {
	s := &shown{Class: fmt.Sprintf("%T", err), Message: err.Error()}
	if api := new(community.APIError); errors.As(err, &api) {
		s.Known, s.Status, s.Type = true, api.HTTPStatusCode, api.Type
		s.Code, _ = api.Code.(string)
		if api.Param != nil {
			s.Param = *api.Param
		}
	}
	return s
}
