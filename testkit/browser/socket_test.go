package browser

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

const intentsFile = `apiVersion: thaw.dev/v1
kind: Router
metadata: {name: auto}
spec:
  intents:
    threshold: 0.6
    list:
    - name: billing
      examples: [where is my invoice, I was charged twice, refund my payment, why is my bill so high, send me the invoice of May, the payment failed]
    - name: weather
      examples: [what is the weather today, will it rain tomorrow, is it sunny in Paris, how cold is it outside, forecast for the weekend, do I need an umbrella]
  rules:
  - {name: billing, when: {intent: billing}, to: [money-7b]}
  - {name: general, to: [chat-7b]}
`

// TestSocket: what is typed changes the decision and starts a cold model, a submit streams
// its answer, a cancel ends it, and the browser has nothing to complain of.
func TestSocket(t *testing.T) {
	p := start(t, map[string]string{"chat.yaml": model(t, "chat-7b", 0, minute5), "money.yaml": model(t, "money-7b", 0, minute5), "auto.yaml": intentsFile})
	b := open(t, p.url+"/ui/socket")
	b.press("button", "Connect")
	b.until("the socket is open", "document.querySelector('.filters [role=status]').textContent === 'connected'")
	b.write("#text", "hello there ")
	b.sees("general → chat-7b")
	b.do(chromedp.KeyEvent("at length: where is my invoice "))
	b.sees("billing → money-7b", "model of money-7b")
	b.press("button", "Submit")
	b.until("tokens come", "document.querySelector('#answer').textContent.includes('weights')")
	b.press("button", "Cancel")
	b.sees("complete in")
	words := func() string { return value[string](b, "document.querySelector('#answer').textContent") }
	cancelled := words()
	if strings.Count(cancelled, "weights") >= repeats {
		t.Errorf("the answer was not cancelled: %d bytes", len(cancelled))
	}
	b.check("socket-cancelled")

	b.write("#text", "a short question ")
	b.sees("general → chat-7b")
	b.press("button", "Submit")
	b.until("a whole answer has come", "document.querySelector('#answer').textContent.includes('any more')")
	b.sees("22 tokens")
	if got := words(); strings.Count(got, "weights") != 1 {
		t.Errorf("the answer is %q", got)
	}
	p.stop()
	b.sees("closed 1001 (shutting down)")
	b.wantNoFaults("Failed to load resource", "ERR_CONNECTION_REFUSED") // of the list that the page keeps live
}
