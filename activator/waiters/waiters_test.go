package waiters

import "testing"

func TestIndex(t *testing.T) {
	var x Index[int]
	<-x.Drained() // of an empty one
	x.Add(1, "a", "mine")
	x.Add(2, "b", "mine")
	drained := x.Drained()
	x.Remove(1, "a", "mine")
	select {
	case <-drained:
		t.Fatal("one waits still")
	default:
	}
	if _, ok := x.Find("a"); ok || x.count != 1 {
		t.Error(x.count)
	}
	for _, id := range []string{"b", "mine"} {
		if r, ok := x.Find(id); r != 2 || !ok {
			t.Error(id, r, ok)
		}
	}
	x.Remove(2, "b", "mine")
	<-drained
	<-x.Drained()
}
