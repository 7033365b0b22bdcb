package cli

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// TestToKnative: what is said of a cluster goes to the program for clusters,
// word by word, and what makes no sense there goes nowhere.
func TestToKnative(t *testing.T) {
	var got []string
	p := Programs{Knative: func(_ context.Context, args []string, _ io.Reader, stdout, _ io.Writer) error {
		got = args
		io.WriteString(stdout, "printed\n")
		return &kit.Error{Exit: 4}
	}}
	for _, x := range []struct {
		args []string
		want []string
	}{
		{[]string{"-f", "a.yaml"}, []string{"--filename=a.yaml"}},
		{[]string{"-f", "a b.yaml", "-f", "x,y"}, []string{"--filename=a b.yaml", "--filename=x,y"}},
		{[]string{"-f", "a", "--dry-run", "-o", "yaml"}, []string{"--output=yaml", "--filename=a", "--dry-run=true"}},
		{[]string{"-f", "a", "-n", "ml"}, []string{"--filename=a", "--namespace=ml"}},
		{[]string{"-f", "a", "--wait", "--skip-preflight", "--pod", "p.yaml"}, []string{"--filename=a", "--wait=true", "--pod=p.yaml", "--skip-preflight=true"}},
		{[]string{"-f", "a", "--namespace", "ml", "--kubeconfig", "k", "--context", "c", "--thaw-image", "i", "--image", "vllm=a", "--image", "command=b,c", "--store", "/s", "--request-timeout", "90s", "--timeout", "5s"},
			[]string{"--timeout=5s", "--filename=a", "--context=c", "--image=vllm=a", "--image=command=b,c", "--kubeconfig=k", "--namespace=ml", "--request-timeout=1m30s", "--store=/s", "--thaw-image=i"}},
	} {
		got = nil
		out, errs, exit := runCLI(t, p, nil, append([]string{"deploy", "--to", "knative"}, x.args...)...)
		if want := append([]string{"deploy"}, x.want...); !slices.Equal(got, want) {
			t.Errorf("got  %q\nwant %q", got, want)
		}
		// Who has said why is not spoken over.
		if exit != 4 || out != "printed\n" || errs != "" {
			t.Errorf("exit %d %q %q", exit, out, errs)
		}
	}
	for _, x := range []struct{ args, want string }{
		{"--to knativ -f a", `"knativ" is no place that thaw knows`},
		{"-f a --skip-preflight", "--skip-preflight is for clusters"},
		{"--to knative -f a --server http://x", "--server is for servers"},
		{"--to knative -f a --key x", "--key is for servers"},
		{"--to knative -f a --data x", "--data is for servers"},
		{"-f a --namespace ml", "--namespace is for clusters"},
		{"-f a --image vllm=a", "--image is for clusters"},
		{"--to knative -f a b", `"b" is more than`},
	} {
		got = nil
		_, errs, exit := runCLI(t, p, nil, append([]string{"deploy"}, strings.Fields(x.args)...)...)
		if exit != kit.ExitUsage || !strings.Contains(errs, x.want) || !strings.Contains(errs, "hint: ") || got != nil {
			t.Errorf("%s: exit %d, want %q:\n%s", x.args, exit, x.want, errs)
		}
	}
	got = nil
	if _, errs, exit := runCLI(t, p, nil, "doctor", "--to", "knative", "-o", "json", "--context", "c"); exit != 4 || !slices.Equal(got, []string{"doctor", "--output=json", "--context=c"}) {
		t.Errorf("exit %d %s %q", exit, errs, got)
	}
	if _, errs, exit := runCLI(t, p, nil, "doctor", "--to", "knative", "-f", "m.yaml"); exit != 4 || !slices.Equal(got, []string{"doctor", "--filename=m.yaml"}) {
		t.Errorf("exit %d %s %q", exit, errs, got)
	}
	if _, errs, exit := runCLI(t, p, nil, "doctor", "-f", "m.yaml"); exit != kit.ExitUsage ||
		!strings.Contains(errs, "--filename is for clusters") {
		t.Errorf("exit %d %s", exit, errs)
	}
	if _, errs, exit := runCLI(t, p, nil, "doctor", "--to", "knative", "--functions", "f"); exit != kit.ExitUsage ||
		!strings.Contains(errs, "--functions is for servers") {
		t.Errorf("exit %d %s", exit, errs)
	}
}

// TestNamespaceFlag: every verb that takes --to knative takes -n, --namespace.
func TestNamespaceFlag(t *testing.T) {
	root := newRoot(&connection{printer: printer{kit.NewTerminal(strings.NewReader(""), io.Discard, io.Discard,
		func(string) string { return "" })}, programs: Programs{Getenv: func(string) string { return "" }}})
	verbs := 0
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Flags().Lookup("to") != nil {
			verbs++
			if f := cmd.Flags().Lookup("namespace"); f == nil || f.Shorthand != "n" {
				t.Errorf("%s has no -n, --namespace", cmd.CommandPath())
			}
		}
		for _, c := range cmd.Commands() {
			walk(c)
		}
	}
	walk(root)
	if verbs < 15 {
		t.Errorf("only %d verbs take --to knative", verbs)
	}
}
