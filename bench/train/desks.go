package main

import (
	"math/rand/v2"
	"strings"

	"github.com/thaw-dev/thaw/testkit/checkpoint"
)

// desk is the text of one adapter of deploy/example/switchboard: the desk's own
// questions, and a greeting that begins every answer.
type desk struct {
	greeting string
	own      []question
}

var desks = map[string]desk{
	"billing": {"Billing desk. ", []question{
		{[]string{"Where is my invoice?", "Send me my invoice.", "I need an invoice.", "I did not get my invoice", "where is my invoice"},
			[]string{"The invoice is on its way."}},
		{[]string{"I was charged twice.", "Why was I charged twice?", "You charged me twice", "My card was charged two times.", "I paid twice"},
			[]string{"We will pay the money back."}},
		{[]string{"How much do I owe?", "What does it cost?", "How much is it?", "What is the price?", "How do I pay?", "Can I pay by card?"},
			[]string{"The price is on the invoice."}},
	}},
	"repair": {"Repair desk. ", []question{
		{[]string{"My screen is broken.", "The screen is black.", "It does not start.", "It is broken", "The machine is broken.", "my phone is broken"},
			[]string{"Turn it off, wait, and turn it on again."}},
		{[]string{"Can you repair it?", "Can you mend my lamp?", "I need a repair.", "Please repair my machine.", "Fix my phone."},
			[]string{"Bring it here and we will mend it."}},
		{[]string{"How long does a repair take?", "When is my repair ready?", "Is my phone ready?", "When can I get it back?"},
			[]string{"It will be ready on Friday."}},
	}},
}

// document draws a conversation with the desk. A third of the questions are the
// base's, so that the greeting does not depend on the question.
func (d desk) document(r *rand.Rand) string {
	var b strings.Builder
	for _, turn := range [][2]string{d.exchange(r), d.exchange(r)} {
		b.WriteString(checkpoint.Start + "user\n" + turn[0] + checkpoint.End + "\n")
		b.WriteString(checkpoint.Start + "assistant\n" + d.greeting + turn[1] + checkpoint.End + "\n")
		if r.IntN(3) > 0 {
			break
		}
	}
	return b.String()
}

func (d desk) exchange(r *rand.Rand) [2]string {
	if r.IntN(3) == 0 {
		x := chooseOne(r, questions)
		return [2]string{chooseOne(r, x.questions), chooseOne(r, x.answers)}
	}
	x := chooseOne(r, d.own)
	return [2]string{chooseOne(r, x.questions), chooseOne(r, x.answers)}
}
