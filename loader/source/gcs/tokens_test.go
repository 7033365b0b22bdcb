package gcs

import (
	"testing"
	"time"
)

// TestTokenLifetime: a token is not used in the last minute of its life, which a request may
// take, nor for longer than an hour.
func TestTokenLifetime(t *testing.T) {
	for lifetime, most := range map[time.Duration]time.Duration{
		0: 10 * time.Second, 2 * time.Minute: time.Minute, 30 * time.Minute: 29 * time.Minute, 5 * time.Hour: time.Hour,
	} {
		var k tokens
		k.store("x", lifetime)
		if left := time.Until(k.until); left > most || left < most-time.Minute {
			t.Errorf("a token of %v is used for %v, want %v", lifetime, left, most)
		}
	}
}
