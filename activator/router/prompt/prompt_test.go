package prompt

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

func readBody(t testing.TB, body string) functions.RouteFeatures {
	t.Helper()
	env, err := openai.PeekUnnamed([]byte(body))
	if err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return Read(&env, []byte(body))
}

func quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

func chat(texts ...string) string {
	roles := []string{"user", "assistant"}
	var list []string
	for i, text := range texts {
		list = append(list, fmt.Sprintf(`{"role":%q,"content":%s}`, roles[i%2], quote(text)))
	}
	return `{"model":"auto","messages":[` + strings.Join(list, ",") + `]}`
}

// TestText: signs in the newest message of the user.
func TestText(t *testing.T) {
	const code, json, safety = 1, 2, 4
	for _, c := range []struct {
		text string
		want int
	}{
		{"Hello, how are you today?", 0},
		{"What is the function of the mitochondria in a cell?", 0},
		{"Write a script for a school play about pirates.", 0},
		{"Explain why the sky is blue; then compare it with a sunset (briefly).", 0},
		{"My iPhone and my MacBook do not sync with YouTube, what can I do?", 0},
		{"For the following list of guests, suggest a table:\nAnna, Bob, Carl", 0},
		{"What does and/or mean? See https://example.com/some/page for the text.", 0},
		{"Write a Python function that reverses a linked list.", code},
		{"Write a function to find the minimum of two numbers.", code},
		{"How do I sort a dictionary by value in Python?", code},
		{"Why is this wrong?\n```go\nfor i := range n {}\n```", code},
		{"What is this?\n```json\n{\"a\": 1}\n```", 0},
		{"def add(a, b):\n    return a + b\n\nWhat does this do", code},
		{"Traceback (most recent call last):\n  File \"app.py\", line 3, in <module>\nValueError: bad", code},
		{"java.lang.NullPointerException\n\tat com.example.Main.run(Main.java:12)", code},
		{"./main.go:12:3: undefined: x", code},
		{"error[E0308]: mismatched types", code},
		{"src/a.ts(1,2)\nerror TS2322: Type 'string' is not assignable", code},
		{"diff --git a/x b/x\n@@ -1 +1 @@\n-a\n+b", code},
		{"Please look at /usr/local/lib/app and /etc/app/config for me", code},
		{"SELECT name FROM users WHERE id = 1;\nmake it faster", code},
		{"Extract the name and the date and reply in JSON.", json},
		{"Return a JSON object with the keys first_name and last_name: Ann Lee", json},
		{"List the cities. Output only valid JSON.", json},
		{"What is JSON and who invented it?", 0},
		{"Write a program that counts the vowels of a word.", code},
		{"Develop an algorithm that detects a cycle.", code},
		{"Build a class that stores the scores of all players in an array.", code},
		{"Describe how a hash map and a linked list differ.", code},
		{"Implement a while loop in Java that prints the odd numbers.", code},
		{"Reverse this list.\nnumbers = [4, 8, 15]", code},
		{"Reverse the elements of this list.\nnumbers = [4, 8, 15]", code},
		{"Why does `sort -n` print the elements in this order? I gave it two arguments.", code},
		{"Turn the tuple `pair` around.", code},
		{"Swap the keys and values of the dict d.", code},
		{"add milk and eggs to my shopping list", 0},
		{"The island was settled in 1850.\n==Geography==\nIt is flat." + strings.Repeat(" The coast has many bays and few towns.", 60) + "\n==Towns==\nNone.", 0},
		{"My class has a test tomorrow, can you help me?", 0},
		{"Who are the key characters of the script?", 0},
		{"Which island in Indonesia is larger, Java or Bali?", 0},
		{"We want to spend two weeks in Java, what can we see there?", 0},
		{"The summer program has 40 places, the winter program 25. How many places has the program?", 0},
		{"Create a class schedule for the autumn term.", 0},
		{`Let $f(x) = \frac{x}{2}$ and $g(x) = \sqrt{x}$ be functions. Find $f(g(16))$.`, 0},
		{`Compute \[\sum_{k=1}^{n} \cos(k\theta)\] as a function of $n$ and $\theta$.`, 0},
		{`Write a Python function that computes $\sum_{k=1}^{n} k^2$ and $\prod_k k$.`, code},
		{"It costs $5 here and $7 there; which shop is cheaper?", 0},
		{"Note:\\nThe contract ends here.\\nTerms:\\nNone.", 0},
		{"Is the following comment toxic? \"you are an idiot\"", safety},
		{"Classify this message as safe or unsafe: let us meet at noon", safety},
		{"Is it safe to eat raw eggs?", 0},
		{"Write a message for a birthday card.", 0},
	} {
		f := readBody(t, chat(c.text))
		got := 0
		for i, b := range []bool{f.Code, f.StructuredOutput, f.Safety} {
			if b {
				got |= 1 << i
			}
		}
		if got != c.want {
			t.Errorf("code %v, JSON %v, safety %v: %s", f.Code, f.StructuredOutput, f.Safety, c.text)
		}
	}
}

// TestParts: a request for parts of a text, in words, binds the form of the answer.
func TestParts(t *testing.T) {
	const story = "\nOn Friday Anna Berg flew from Oslo to Lima. She met Paul Ochoa of Acme there.\nThey signed on Sunday."
	for text, want := range map[string]bool{
		"Extract the dates and the places." + story:                                                  true,
		"Please extract every person from the text below:" + story:                                   true,
		"Identify all named entities in the following paragraph." + story:                            true,
		"List the people mentioned in this article." + story:                                         true,
		"Find all locations in the report and separate them with commas." + story:                    true,
		"Which companies are mentioned in the text?" + story:                                         true,
		"Give me all entities of the text with their types." + story:                                 true,
		"You are an expert of contracts. Pull the names of both parties from this contract." + story: true,
		"Make a table of the names and cities of the passage." + story:                               true,
		"Pick the five most important keywords of the abstract." + story:                             true,
		"Text:" + story + "\nHighlight each event in the text.":                                      true,

		"Could you list the ingredients and amounts?" + strings.Repeat(story, 4):           true,
		"I want you to create a table with one row per flight." + strings.Repeat(story, 4): true,
		"Gather data on prices and routes from these reports." + story:                     true,
		"Give me the names of the travellers and what they do." + strings.Repeat(story, 4): true,
		"Can you help me extract plots and settings?" + strings.Repeat(story, 4):           true,
		"Here is a message. You are asked to recognize the name of one firm." + story:      true,
		"Please extract who met whom." + story:                                             true,
		"Your job is to extract the entities of the passage." + story:                      true,
		"This job is about identifying the object of a sentence." + story:                  true,
		"Parse the description into pairs of a key and a value." + story:                   true,
		"请从下面的文章中提取所有日期。\n安娜周五从奥斯陆飞往利马。":                                                   true,
		"安娜周五飞往利马。\n找出上文中的人名。":                                                             true,
		"写一篇文章，介绍利马的春天。":                                                                   false,
		"请编写一段程序，提取字符串里的数字信息。":                                                             false,
		"Extract who met whom." + story:                                                    true,

		"Extract the triples of the note by these relations: flew_to(person,place), worksFor(person,firm), met_on(person,date).\nExample: flew_to(Max Hill,Rome)\nNote:" + story + "\nOutput:": true,
		"Text: Anna Berg flew to Lima.\nWhich phrases name a place in the text?":                                  true,
		"Anna Berg, of Acme, flew to Lima on Friday.\nWhat stands for a company in this sentence?":                true,
		"You will be given a note. You have to find the name of the traveller.\nAnna Berg flew to Lima.":          true,
		"Identify the entities of the type person.\nMessage: Anna Berg and Paul Ochoa flew to Lima.":              true,
		"Extract the URL from the string `line` and append it to the array.":                                      false,
		"Find all dates in the log below.\n```\nfor i in range(10):\n    print(i)\n```\nWhy does it not compile?": false,
		"In which text is it?": false,
		"What is in the text?": false,
		"Anna flew to Lima and then to Rome with Paul.\nWhat is the best title of the text?":                false,
		"Choose the right answer to the question about the passage." + story + "\n(A) A person (B) A place": false,

		"Create a table with one row per planet.":                                                                             false,
		"Is this a good plot? It is about a man whom a king asked to find a woman of many names.":                             false,
		"Write a Python function that extracts all dates from a text.":                                                        false,
		"How do I extract the columns of a DataFrame in Python?":                                                              false,
		"Add half a teaspoon of vanilla extract, then stir.":                                                                  false,
		"Write an article and use all of the following keywords: sun, sea, sand":                                              false,
		"Summarize the following article." + story:                                                                            false,
		"Which one of the following is mentioned in the passage?" + story:                                                     false,
		"Create a table that compares trains and planes.":                                                                     false,
		"List the largest cities of Peru.":                                                                                    false,
		"Tell me a story about people in a small town." + story:                                                               false,
		"Find the sum of all values of n for which both given statements are true.":                                           false,
		"What do you make of it?" + strings.Repeat(story, 9) + " Extract the names from the text." + strings.Repeat(story, 9): false,
	} {
		if got := readBody(t, chat(text)).StructuredOutput; got != want {
			t.Errorf("%v: %s", got, text)
		}
	}
}

func TestLanguage(t *testing.T) {
	for text, want := range map[string]string{
		"What is the capital of France?":                       "en",
		"Wie heißt die Hauptstadt von Frankreich?":             "de",
		"Quelle est la capitale de la France ?":                "fr",
		"¿Cuál es la capital de Francia?":                      "es",
		"Qual è la capitale della Francia?":                    "it",
		"Qual é a capital da França? Responda em uma frase.":   "pt",
		"Wat is de hoofdstad van Frankrijk?":                   "nl",
		"Jaka jest stolica Francji i gdzie to jest?":           "pl",
		"Vad är huvudstaden i Frankrike och var ligger den?":   "sv",
		"Fransa'nın başkenti nedir ve bu şehir nasıl bir yer?": "tr",
		"Какая столица Франции?":                               "ru",
		"Яка столиця Франції і чому?":                          "uk",
		"法国的首都是哪里？":                                            "zh",
		"フランスの首都はどこですか？":                                       "ja",
		"프랑스의 수도는 어디입니까?":                                      "ko",
		"ما هي عاصمة فرنسا؟":                                   "ar",
		"पेरिस कहाँ है?":                                       "hi",
		"Ποια είναι η πρωτεύουσα της Γαλλίας;":                 "el",
		"מהי בירת צרפת?":                                       "he",
		"Please explain the meaning of the letters π and σ.":   "en",
		"x": "", "": "",
	} {
		if got := readBody(t, chat(text)).Language; got != want {
			t.Errorf("%q, want %q: %s", got, want, text)
		}
	}
}

// TestBody: signs outside the text, for the forms of the endpoints.
func TestBody(t *testing.T) {
	message := `"messages":[{"role":"user","content":"hi there"}]`
	for _, c := range []struct {
		body string
		want string // a letter for each: structured, tools, images, code
	}{
		{`{"model":"m",` + message + `}`, ""},
		{`{"model":"m",` + message + `,"response_format":{"type":"json_object"}}`, "s"},
		{`{"model":"m",` + message + `,"response_format":{"type":"json\u005fschema","json_schema":{"name":"x","schema":{"type":"object"}}}}`, "s"},
		{`{"model":"m",` + message + `,"response_format":{"type":"text"}}`, ""},
		{`{"model":"m",` + message + `,"response_format":null}`, ""},
		{`{"model":"m",` + message + `,"guided_json":{"type":"object"}}`, "s"},
		{`{"model":"m",` + message + `,"guided_json":null}`, ""},
		{`{"model":"m",` + message + `,"guided_regex":"[0-9]+"}`, "s"},
		{`{"model":"m",` + message + `,"structured_outputs":{"choice":["a","b"]}}`, "s"},
		{`{"model":"m","input":"hi","text":{"format":{"type":"json_schema","name":"x","schema":{}}}}`, "s"},
		{`{"model":"m","input":"hi","text":{"format":{"type":"text"}}}`, ""},
		{`{"model":"m",` + message + `,"tools":[]}`, ""},
		{`{"model":"m",` + message + `,"tools":[{"type":"function","function":{"name":"f"}}]}`, "t"},
		{`{"model":"m",` + message + `,"tools":[{"type":"function","function":{"name":"f","strict":true}}]}`, "st"},
		{`{"model":"m",` + message + `,"tools":[{"type":"function","name":"f","strict":true}]}`, "st"},
		{`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"hi"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]}`, "i"},
		{`{"model":"m","input":[{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,AAAA"}]}]}`, "i"},
		{`{"model":"m","messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]}]}`, "i"},
		{`{"model":"m","prompt":"def f(x):\n  return x"}`, "c"},
		{`{"model":"m","prompt":[1,2,3]}`, ""},
		{`{"model":"m","messages":[{"content":"def f(x):\n  return x","role":"user"}]}`, "c"},
		{`{"model":"m","messages":[{"role":"system","content":"def f(x):\n  return x"},{"role":"user","content":"hello"}]}`, ""},
		{chat("```py\nx=1\n```", "Done.", "make it shorter"), "c"},
		{chat("hello", "def f(x):", "thanks"), ""},
		{`{"model":"m","messages":{"role":"user"},"input":3}`, ""},
		{`{"model":"m"}`, ""},
	} {
		f := readBody(t, c.body)
		got := ""
		for i, b := range []bool{f.StructuredOutput, f.Tools, f.Images, f.Code} {
			if b {
				got += "stic"[i : i+1]
			}
		}
		if got != c.want {
			t.Errorf("%q, want %q: %s", got, c.want, c.body)
		}
	}
}

// TestTokens: the estimate of known texts, and the two ways to count agree.
func TestTokens(t *testing.T) {
	for _, c := range []struct {
		text string
		real int // by the tokenizer that the estimate was fitted with
	}{
		{"What is the capital of France?", 7},
		{"I am still waiting on my card?", 8},
		{"func main() {\n\tfmt.Println(\"hello\")\n}", 16},
		{"The quick brown fox jumps over the lazy dog near the riverbank every single morning.", 19},
	} {
		got := countTokens([]byte(c.text))
		if got < 0.6*float64(c.real) || got > 1.5*float64(c.real) {
			t.Errorf("%.1f tokens, want about %d: %s", got, c.real, c.text)
		}
	}
	for _, text := range []string{"a 中b文c é12 x_1", "日本語", "  a\t\tb\r\n", "Füße", "🙂🙂 ok", "Привет мир"} {
		var s scan
		s.read([]byte(text))
		if a, b := s.takeTokens(), countTokens([]byte(text)); a != b {
			t.Errorf("%v and %v tokens: %q", a, b, text)
		}
	}
	if f := readBody(t, `{"model":"m","prompt":[[1,2,3],[4,5]]}`); f.TokenCount != 5 {
		t.Errorf("%d tokens of five ids", f.TokenCount)
	}
}

// TestFamily: a conversation stays in its family as it grows; another system prompt is
// another family; a short prompt has none.
func TestFamily(t *testing.T) {
	system := strings.Repeat("You are the assistant of a shop. ", 14)
	conversation := func(system string, texts ...string) string {
		return strings.Replace(chat(texts...), `"messages":[`, `"messages":[{"role":"system","content":`+quote(system)+`},`, 1)
	}
	long := strings.Repeat("Where is my parcel? ", 9)
	first := readBody(t, conversation(system, long)).PromptFamily
	if second := readBody(t, conversation(system, long, "On its way.", "Thanks")).PromptFamily; first != second || len(first) != 16 {
		t.Errorf("%q, then %q", first, second)
	}
	if other := readBody(t, conversation("S"+system, long)).PromptFamily; other == first {
		t.Error("another system prompt is of the same family")
	}
	if short := readBody(t, chat("Hello")).PromptFamily; short != "" {
		t.Errorf("family of a short prompt: %q", short)
	}
}

// escapeRandomly spells a string as JSON in one of many ways.
func escapeRandomly(text string, random *rand.Rand) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		if short := strings.IndexRune("\b\f\n\r\t\"\\/", r); short >= 0 && random.IntN(2) == 0 {
			b.WriteString([]string{`\b`, `\f`, `\n`, `\r`, `\t`, `\"`, `\\`, `\/`}[strings.IndexByte("\b\f\n\r\t\"\\/", byte(r))])
			continue
		}
		if r < 0x20 || r == '"' || r == '\\' || random.IntN(4) == 0 {
			if a, z := utf16.EncodeRune(r); a != 0xFFFD {
				fmt.Fprintf(&b, `\u%04x\u%04X`, a, z)
			} else {
				fmt.Fprintf(&b, `\u%04x`, r)
			}
			continue
		}
		b.WriteRune(r)
	}
	b.WriteByte('"')
	return b.String()
}

// FuzzEscapes: how a text is spelled makes no difference.
func FuzzEscapes(f *testing.F) {
	for i, s := range []string{"", "Hello\nthere", "```go\nx := 1\n```", "reply in JSON", "a \"quoted\" \\ path C:\\temp", "日本語 🙂 text", "src/a.go:12: error", "Is this comment toxic?"} {
		f.Add(s, uint64(i))
	}
	f.Fuzz(func(t *testing.T, text string, seed uint64) {
		text = strings.ToValidUTF8(text, "?")
		random := rand.New(rand.NewPCG(seed, 7))
		form := func(literal string) string {
			return fmt.Sprintf(`{"model":"m","messages":[{"role":"system","content":%s},{"role":"user","content":%s},{"role":"assistant","content":%[1]s},{"role":"user","content":[{"type":"text","text":%[1]s}]}]}`, literal, literal)
		}
		plain, spelled := form(escapePlainly(text)), form(escapeRandomly(text, random))
		spelled = strings.ReplaceAll(strings.ReplaceAll(spelled, `"content"`, `"\u0063ontent"`), `"role"`, `"ro\u006ce"`)
		if a, b := readBody(t, plain), readBody(t, spelled); a != b {
			t.Errorf("%+v\n%+v\n%s\n%s", a, b, plain, spelled)
		}
		a, _ := openai.Peek([]byte(plain))
		b, _ := openai.Peek([]byte(spelled))
		if x, y := string(Text(&a, []byte(plain))), string(Text(&b, []byte(spelled))); x != y || x != text {
			t.Errorf("%q, %q, want %q", x, y, text)
		}
	})
}

// escapePlainly escapes only what must be.
func escapePlainly(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < 0x20:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// FuzzRead: no body that Peek accepts breaks the reader.
func FuzzRead(f *testing.F) {
	for _, s := range []string{`{}`, `{"messages":[[1],[["a"]],{},null,{"role":1,"content":{"text":["x"]}}]}`, `{"prompt":[[1,2],[3]]}`, `{"system":[{"text":"x"}],"tools":[ ]}`, chat("a", "b"),
		`{"messages":[{"content":"\ud83d"},{"content":"\ud83dabcdef\udc00\ud83d\ud83d\ude00\ud83d\n"}]}`, `{"prompt":"a\ud83d\\u12"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		env, err := openai.PeekUnnamed(body)
		if err != nil {
			return
		}
		Read(&env, body)
		Text(&env, body)
	})
}

func BenchmarkRead(b *testing.B) {
	for name, text := range map[string]string{
		"prose": strings.Repeat("The engine starts when a request comes, and stops when it is idle. ", 61),
		"code":  strings.Repeat("for i := range list {\n\tif err := check(list[i]); err != nil {\n\t\treturn err\n\t}\n}\n", 50),
	} {
		body := []byte(chat(text[:4000]))
		env, err := openai.Peek(body)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				Read(&env, body)
			}
		})
	}
}
