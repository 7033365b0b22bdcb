package functions

import "testing"

// TestAllows: a class goes as far as allow says; what is unset or unknown is confined.
func TestAllows(t *testing.T) {
	for allow, want := range map[DataClass]string{"": "public ", "wrong": "public ", DataPublic: "public ", DataInternal: "public internal ", DataSecret: "public internal secret  wrong "} {
		r := &Remote{Spec: RemoteSpec{Allow: allow}}
		got := ""
		for _, class := range append(DataClasses, "", "wrong") {
			if r.Allows(class) {
				got += string(class) + " "
			}
		}
		if got != want {
			t.Errorf("allow %q: %q, want %q", allow, got, want)
		}
	}
}
