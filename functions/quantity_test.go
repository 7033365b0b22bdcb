package functions

import (
	"encoding/json"
	"testing"
)

func TestParseCPU(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want CPU
		out  string
	}{
		{"2", 2000, "2"}, {"0.5", 500, "500m"}, {"250m", 250, "250m"}, {"0", 0, "0"}, {"1.0001", 1001, "1001m"}, {"1000m", 1000, "1"},
	} {
		got, err := ParseCPU(tt.in)
		if err != nil || got != tt.want || got.String() != tt.out {
			t.Errorf("%s: got %d (%s), %v; want %d (%s)", tt.in, got, got, err, tt.want, tt.out)
		}
		again, err := ParseCPU(got.String())
		if err != nil || again != got {
			t.Errorf("%s does not come back: %d, %v", got, again, err)
		}
	}
	for _, in := range []string{"", "m", "-1", "1e3", "0x10", "two", "1 ", "NaN", "inf", "99999999999999"} {
		if got, err := ParseCPU(in); err == nil {
			t.Errorf("%q is %d processors", in, got)
		}
	}
}

func TestCPUInJSON(t *testing.T) {
	for in, want := range map[string]CPU{`{"cpu":2}`: 2000, `{"cpu":"500m"}`: 500, `{"cpu":0.25}`: 250, `{}`: 0} {
		var got Resources
		if err := json.Unmarshal([]byte(in), &got); err != nil || got.CPU != want {
			t.Errorf("%s: got %d, %v; want %d", in, got.CPU, err, want)
		}
		text, err := json.Marshal(got)
		var again Resources
		if err != nil || json.Unmarshal(text, &again) != nil || again != got {
			t.Errorf("%s does not come back: %s, %v", in, text, err)
		}
	}
}
