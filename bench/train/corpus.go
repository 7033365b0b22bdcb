package main

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/thaw-dev/thaw/testkit/checkpoint"
)

// The text is the project's own, written for this purpose. Half of it is dialogues in
// ChatML generated from the templates below, the other half the stories.

var samples = []string{
	`A model sleeps at rest. It costs nothing while it sleeps. Then a request comes, and the request waits at the gate. The loader brings the weights, the engine wakes, and the first token goes out. After some minutes without work the model goes to sleep again.`,
	`Once there was a small model that lived on a quiet machine. Every morning somebody asked it a question, and every morning it woke up, answered in plain words, and went back to sleep. It was not the largest model in town, but it was the first to answer.`,
	`Winter came to the valley, and the lake froze. The boats stood still, and the children walked on the ice. When the days grew longer the ice began to thaw. One warm morning the first boat went out again, and everybody on the shore was glad.`,
	`A cold start has seven parts. First the request waits in the queue. Then a place is found. The bytes are staged, the process is spawned, the weights are loaded, the model is warmed up, and at last the first token is made. What is measured can be made shorter.`,
	`Many models can share one machine when they take turns. The one that is needed is awake, and the others rest. Nobody has to pay for a model that does nothing, and nobody has to wait longer than it takes to load one.`,
	`The old lamp maker had a simple rule: a lamp that nobody needs should not burn. So she went through the house each evening and put the lamps out, one by one. When a guest came, she lit a lamp at once, and the guest never sat in the dark for long.`,
	`A river begins as a small stream in the hills. It runs over stones, takes in other streams, and grows. By the time it reaches the sea it carries ships. An answer is like that: it begins with one word, and each word brings the next.`,
	`The gardener plants the seeds in spring and waters them every day. In summer the flowers open, red and yellow and blue. In autumn she gathers the seeds, and in winter the garden sleeps under the snow until the sun comes back.`,
	`Rain fell on the roof all night. In the morning the sky was clear, the streets were wet, and the air smelled of grass. The baker opened his door, the first bread came out of the oven, and the day began.`,
	`The train to the north leaves at eight. It passes two lakes, a forest and a long bridge. If the snow is deep it comes late, but it always comes. The people on the platform know this, and they wait without worry.`,
}

// question is a kind of question with its possible answers.
type question struct{ questions, answers []string }

var questions = []question{
	{[]string{"Hello", "Hello!", "Hi", "Hi!", "Hi there", "Hey", "hello", "hi", "Good morning", "Good day", "Say hi", "Say hello", "Say hello.", "Greet me", "say hi", "Hello there", "Hello, how are you?", "Hi, who is there?"},
		[]string{"Hello! I am a tiny model. How can I help you?", "Hello! It is good to hear from you.", "Hi! I was asleep, and now I am awake. What can I do for you?"}},
	{[]string{"How are you?", "How do you do?", "Are you well?", "How are you today?"},
		[]string{"I am well, thank you. I woke up a moment ago and I am ready to work.", "I am well and wide awake. Thank you for asking."}},
	{[]string{"Who are you?", "What are you?", "What is your name?", "Tell me about yourself.", "Tell me about yourself", "who are you", "Introduce yourself.", "What model are you?"},
		[]string{"I am tiny, the model that ships with thaw. I have less than one million parameters, so my answers are short and simple.", "I am a tiny language model. I was trained for a few minutes so that you can try thaw on any machine."}},
	{[]string{"What is thaw?", "What does thaw do?", "Explain thaw.", "Tell me about thaw.", "what is thaw", "Tell me about thaw", "Explain thaw in one sentence.", "Why should I use thaw?"},
		[]string{"Thaw lets many models share few machines. A model with no traffic costs nothing, and a request wakes it up as fast as physics allows.", "Thaw is serverless inference for language models. Models sleep while nobody needs them and wake up when a request comes."}},
	{[]string{"What is a cold start?", "What is cold start?", "Explain cold starts.", "Why is a cold start slow?", "What happens on a cold start?", "Tell me about cold starts.", "Tell me about cold starts"},
		[]string{"A cold start is the time from a request to the first token when the model is not loaded. The weights are staged, the engine starts, and the model warms up.", "On a cold start the request waits while the weights are loaded and the engine wakes up. Then the first token goes out."}},
	{[]string{"What is a token?", "Explain tokens.", "What are tokens?"},
		[]string{"A token is a piece of text, often a word or a part of a word. A model reads tokens and makes one token at a time."}},
	{[]string{"What is a replica?", "Explain replicas."},
		[]string{"A replica is one engine that serves one model on one node. There can be none, one or many."}},
	{[]string{"What is a gate?", "Where do requests wait?"},
		[]string{"Requests for a model wait at its gate. The gate is bounded and fair, and it tells you how long it will take."}},
	{[]string{"What is the weather like?", "How is the weather?", "How is the weather today?", "What's the weather?", "Is it cold today?", "What is the weather today?"},
		[]string{"It is cold in the morning and warm in the afternoon. The ice begins to thaw.", "I cannot look out of the window, but I hope that the sun is shining where you are.", "The sky is clear, the wind is mild, and the snow is melting."}},
	{[]string{"Tell me a joke.", "Tell me a joke", "Do you know a joke?", "Make me laugh.", "tell me a joke"},
		[]string{"Why did the model sleep so well? Because it had no weights on its mind.", "What do you call a model that wakes up at once? A warm welcome."}},
	{[]string{"Write a poem.", "Write a poem", "Write a haiku.", "Write a short poem.", "Write a haiku about snow.", "Write a poem about winter.", "Write me a poem"},
		[]string{"Snow on the window,\na small light wakes in the dark:\nthe first word is here.", "The ice is thin, the sun is near,\nthe river runs, the sky is clear."}},
	{[]string{"Thank you", "Thanks", "Thank you!", "Thanks!", "thanks", "Thank you very much."},
		[]string{"You are welcome.", "You are welcome! Ask me again when you like."}},
	{[]string{"Goodbye", "Bye", "Bye!", "Good night", "See you"},
		[]string{"Goodbye! I will sleep until you need me again.", "Good night. Wake me when you have a question."}},
	{[]string{"What can you do?", "Help", "help", "Help me", "What do you know?", "How can you help me?", "Can you help me?"},
		[]string{"I can greet you, count, add small numbers, name the days and the seasons, tell a short story, and explain what thaw does."}},
	{[]string{"Say something.", "Say something", "Say anything", "Talk to me.", "Test", "test", "ping", "Are you there?", "Are you awake?", "Testing"},
		[]string{"I am here and I am awake.", "Here I am. The model is loaded and the words are flowing."}},
	{[]string{"What is the capital of France?", "What is the capital of Germany?", "Who wrote Hamlet?", "What is the meaning of life?", "What is quantum physics?", "Explain gravity.", "Write a program.", "Write code in Go.", "Who won the game?", "How do I cook rice?", "What time is it?", "Translate this text.", "Summarize this text.", "What is love?", "How tall is the tower?", "Who is the president?", "What is 12 times 13?", "Explain how a car works."},
		[]string{"I am a very small model, and I do not know that. Ask me about thaw, cold starts, numbers or the weather.", "That is more than I know. I am tiny, and I only learned a few things."}},
	{[]string{"What are the seasons?", "Name the seasons.", "Name the four seasons."},
		[]string{"The four seasons are spring, summer, autumn and winter."}},
	{[]string{"What are the days of the week?", "Name the days of the week.", "Name the days."},
		[]string{"The days are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday."}},
	{[]string{"Name three colors.", "Name some colors.", "What colors do you know?"},
		[]string{"Red, yellow and blue.", "Red, green, blue, yellow, black and white."}},
	{[]string{"What is snow?", "What is ice?"}, []string{"Snow is water that froze in the clouds. It falls softly and melts when it is warm.", "Ice is frozen water. When it grows warm, the ice will thaw."}},
}

var (
	words = strings.Fields("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty")
	days  = strings.Fields("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
	roles = []string{"You are a helpful assistant.", "You are a friendly assistant.", "Be brief.", "You are a helpful assistant. Answer in plain words."}
)

func chooseOne[T any](r *rand.Rand, l []T) T { return l[r.IntN(len(l))] }

// exchange draws a question and its answer. Questions to be worked out, counting and
// adding, are more frequent than memorised ones.
func exchange(r *rand.Rand) (q, a string) {
	switch r.IntN(16) {
	case 0, 5, 6:
		n := 1 + r.IntN(12)
		number := words[n]
		if r.IntN(2) == 0 {
			number = fmt.Sprint(n)
		}
		q = fmt.Sprintf(chooseOne(r, []string{"Count to %s.", "Count to %s", "Please count to %s.", "Count from one to %s.", "count to %s", "Can you count to %s?"}), number)
		return q, capitalize(strings.Join(words[1:n+1], ", ")) + "."
	case 1, 7, 8:
		x, y := r.IntN(10), r.IntN(10)
		if r.IntN(2) == 0 {
			q = fmt.Sprintf(chooseOne(r, []string{"What is %d plus %d?", "What is %d + %d?", "%d + %d", "Add %d and %d."}), x, y)
			return q, fmt.Sprintf("%d plus %d is %d.", x, y, x+y)
		}
		q = fmt.Sprintf("What is %s plus %s?", words[x], words[y])
		return q, fmt.Sprintf("%s plus %s is %s.", capitalize(words[x]), words[y], words[x+y])
	case 2:
		i := r.IntN(7)
		if r.IntN(2) == 0 {
			return fmt.Sprintf(chooseOne(r, []string{"What day comes after %s?", "Which day follows %s?"}), days[i]), "After " + days[i] + " comes " + days[(i+1)%7] + "."
		}
		return "What day comes before " + days[i] + "?", "Before " + days[i] + " comes " + days[(i+6)%7] + "."
	case 3, 4:
		q = chooseOne(r, []string{"Tell me a story.", "Tell me a story", "Tell me a short story.", "Tell me a long story.", "Write a story.", "Tell me something.", "tell me a story", "Write a short story.", "Tell me a long story"})
		a = chooseOne(r, samples)
		if r.IntN(4) == 0 {
			a += " " + chooseOne(r, samples)
		}
		return q, a
	}
	x := chooseOne(r, questions)
	return chooseOne(r, x.questions), chooseOne(r, x.answers)
}

func capitalize(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// document draws a conversation, or sometimes a story alone.
func document(r *rand.Rand) string {
	if r.IntN(8) == 0 {
		return chooseOne(r, samples)
	}
	var b strings.Builder
	turn := func(role, text string) { b.WriteString(checkpoint.Start + role + "\n" + text + checkpoint.End + "\n") }
	if r.IntN(4) == 0 {
		turn("system", chooseOne(r, roles))
	}
	for range 1 + r.IntN(2) {
		q, a := exchange(r)
		turn("user", q)
		turn("assistant", a)
	}
	return b.String()
}

// sampleText returns about n bytes of text for the tokenizer, without special tokens.
func sampleText(r *rand.Rand, n int) string {
	var b strings.Builder
	for b.Len() < n {
		q, a := exchange(r)
		b.WriteString("user\n" + q + "\nassistant\n" + a + "\nsystem\n")
	}
	return b.String()
}
