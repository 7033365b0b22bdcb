package initverb

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/sizing"
	"github.com/thaw-dev/thaw/loader/inspect"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

func (d *draft) file() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# Worked out by thaw init. %s.", d.described())
	line("apiVersion: %s", functions.APIVersion)
	line("kind: Model")
	line("metadata: {name: %s}", scalar(d.name()))
	line("spec:")
	line("  source: %s", scalar(d.sourceText()))
	line("  engine: %s # %s", d.engine, d.why)
	if len(d.args) > 0 {
		words, _ := json.Marshal(d.args) // texts always have a form
		comment := ""
		if c := d.fit.Use.Context; c < d.model.Context {
			comment = fmt.Sprintf(" # %d tokens a request; the model takes up to %d (%s)", c, d.model.Context, oneLine(d.checkpoint.ContextFrom))
		}
		line("  args: %s%s", strings.ReplaceAll(string(words), `,"`, `, "`), comment)
	}
	switch d.checkpoint.Kind {
	case inspect.Embeds:
		line("  serves: [embeddings]")
	case inspect.Scores:
		if d.engine == functions.EngineLlamaCpp {
			line("  serves: [rerank]")
		}
	case inspect.Listens:
		line("  serves: [transcriptions]")
	}
	if len(d.adapters) > 0 {
		line("  adapters:")
		for _, a := range d.adapters {
			rank := ""
			if a.Rank > 0 {
				rank = ", rank: " + strconv.Itoa(a.Rank)
			}
			line("  - {name: %s, source: %s%s}", scalar(a.name), scalar(a.source), rank)
		}
	}
	line("  resources:")
	for _, s := range d.arithmetic() {
		line("    # %s", s)
	}
	for _, s := range d.notes {
		line("    # %s", s)
	}
	if u := d.fit.Use; u.GPUs > 0 {
		line("    gpus: %d", u.GPUs)
		line("    gpuMemory: %s # of each", functions.Bytes(d.fit.Need.Total()))
		line("    memory: %s # of the host, for the engine's processes", d.host)
	} else {
		line("    memory: %s", d.host)
	}
	line("  scale: {target: %d}", d.fit.Use.Requests)
	return b.String()
}

func (d *draft) described() string {
	c := d.checkpoint
	words := []string{oneLine(c.Architecture)}
	if c.Experts > 0 {
		words = append(words, fmt.Sprintf("%d experts", c.Experts))
	}
	if c.Latent {
		words = append(words, "latent attention")
	}
	switch {
	case c.Quantization != "":
		words = append(words, oneLine(c.Quantization))
	case c.DType != "":
		words = append(words, oneLine(c.DType))
	}
	text := strings.Join(append(words, fmt.Sprintf("%s of %s", kit.CountOf(c.Files, "file"), human(c.Stored))), ", ")
	if len(c.Left) > 0 {
		text += fmt.Sprintf("; not read by the engine: %s", oneLine(strings.Join(c.Left[:min(3, len(c.Left))], ", ")))
		if more := len(c.Left) - 3; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
	}
	return text
}

// arithmetic is how the memory adds up.
func (d *draft) arithmetic() []string {
	u, n := d.fit.Use, d.fit.Need
	where := "The host's memory"
	if u.GPUs > 0 {
		where = "Memory of the GPU"
	}
	if u.GPUs > 1 {
		where = fmt.Sprintf("Memory of each of %d GPUs (tensor parallelism)", u.GPUs)
	}
	out := []string{where + ":"}
	row := func(bytes int64, format string, args ...any) {
		if bytes > 0 {
			out = append(out, fmt.Sprintf("%10s  %s", human(bytes), fmt.Sprintf(format, args...)))
		}
	}
	row(n.Weights, "weights%s", d.ofAll(d.model.Weights))
	layers := functions.ConvertAll(d.model.Cache, func(l sizing.Layers) string { return layersText(l, d.engine) })
	row(n.Cache, "KV cache: %s x %d tokens, %s", kit.CountOf(u.Requests, "request"), u.Context, strings.Join(layers, " + "))
	row(n.Adapters, "adapters: %d x %s", d.model.Slots, human(d.model.Adapter))
	row(n.Program, "%s itself", d.engine)
	row(n.Work, "what a batch takes")
	row(n.Total(), "in all, rounded up")
	return out
}

// ofAll says of what a GPU has a share.
func (d *draft) ofAll(all int64) string {
	if d.fit.Use.GPUs > 1 {
		return fmt.Sprintf(": %s / %d", human(all), d.fit.Use.GPUs)
	}
	return ""
}

func layersText(l sizing.Layers, e functions.Engine) string {
	factor := int64(1)
	if e == functions.EngineEmber {
		factor = 2 // it keeps 32 bits
	}
	var parts []string
	if l.Token > 0 {
		text := fmt.Sprintf("%s x %d bytes a token", kit.CountOf(l.Count, "layer"), l.Token*factor)
		if l.Heads > 0 {
			text += fmt.Sprintf(" (%s)", kit.CountOf(l.Heads, "KV head"))
		}
		if l.Window > 0 {
			text += fmt.Sprintf(", at most %d tokens", l.Window)
		}
		parts = append(parts, text)
	}
	if l.State > 0 {
		parts = append(parts, fmt.Sprintf("%s x %s a request", kit.CountOf(l.Count, "layer"), human(l.State*factor)))
	}
	return strings.Join(parts, " + ")
}

// plain are texts that YAML reads as themselves.
var plain = regexp.MustCompile(`^[A-Za-z/][A-Za-z0-9/._@~+-]*(://[A-Za-z0-9/._@~+-]+)?$`)

// scalar spells a text for YAML.
func scalar(s string) string {
	switch strings.ToLower(s) {
	case "true", "false", "yes", "no", "on", "off", "null", "y", "n":
	default:
		if plain.MatchString(s) {
			return s
		}
	}
	quoted, _ := json.Marshal(s) // a text always has a form
	return string(quoted)
}

// oneLine makes a text of a checkpoint fit for a comment.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x2029 {
			return ' '
		}
		return r
	}, s)
	return functions.Clip(strings.ToValidUTF8(s, "?"))
}
