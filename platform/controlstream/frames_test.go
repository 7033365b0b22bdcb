package controlstream

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// played returns a stream that reads b.
func played(b []byte, most int) *stream {
	return newStream(bytes.NewReader(b), most, nil, 0, func() {})
}

// recorded returns the bytes of frames.
func recorded(t testing.TB, frames ...any) []byte {
	t.Helper()
	var wrote bytes.Buffer
	s := newStream(nil, 0, func(b []byte) error { _, err := wrote.Write(b); return err }, maxDown, func() {})
	for _, f := range frames {
		if err := s.write(f); err != nil {
			t.Fatal(err)
		}
	}
	return wrote.Bytes()
}

var moment = time.Date(2026, 11, 22, 1, 2, 3, 4, time.UTC)

// fill sets every exported field, at any depth, to a value that is not zero.
func fill(v reflect.Value, r *rand.Rand) {
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(moment.Add(-time.Duration(r.IntN(1e9)))))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), r)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), r)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(v.Index(i), r)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 2 {
			key, val := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(key, r)
			fill(val, r)
			v.SetMapIndex(key, val)
		}
	case reflect.String:
		v.SetString(string(rune('a'+r.IntN(26))) + string(rune('a'+r.IntN(26))) + "\xff") // not valid UTF-8
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64, reflect.Float32:
		v.SetFloat(1 + r.Float64())
	case reflect.Uint, reflect.Uint64, reflect.Uint32, reflect.Uint16, reflect.Uint8:
		v.SetUint(1 + r.Uint64N(200))
	case reflect.Int, reflect.Int64, reflect.Int32, reflect.Int16, reflect.Int8:
		v.SetInt(1 + r.Int64N(100))
	case reflect.Interface: // any JSON
		v.Set(reflect.ValueOf(string(rune('a' + r.IntN(26)))))
	default:
		panic("the test cannot make a " + v.Type().String())
	}
}

// TestNothingIsLost: every field of a message arrives, also ones added later.
func TestNothingIsLost(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var up, up2 Report
	var down, down2 Update
	for _, x := range []any{&up, &up2, &down, &down2} {
		fill(reflect.ValueOf(x).Elem(), r)
	}
	p := played(recorded(t, up.pack(true, 7, moment), up2.pack(false, 8, moment)), maxUp)
	for i, want := range []Report{up, up2} {
		var f reportFrame
		if err := p.read(&f); err != nil {
			t.Fatal(err)
		}
		got, err := f.unpack(moment)
		if err != nil || f.FullSync != (i == 0) || f.AppliedSeq != uint64(7+i) {
			t.Fatal(f, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("message %d of a peer:\n%s", i, d)
		}
	}
	sent, got := models{}, models{}
	p = played(recorded(t, down.pack(1, sent, moment), down2.pack(2, sent, moment)), maxDown)
	for i, want := range []Update{down, down2} {
		var f updateFrame
		if err := p.read(&f); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, f.unpack(got, moment)); d != "" {
			t.Errorf("message %d of the controller:\n%s", i, d)
		}
	}
}

// TestAbsentIsAbsent: an absent part and an empty one stay different.
func TestAbsentIsAbsent(t *testing.T) {
	for _, want := range []Update{{}, {Peers: &[]functions.Peer{}}, {Keys: &Keys{}}, {Table: &Table{}}, {FullSync: true}} {
		var f updateFrame
		if err := played(recorded(t, want.pack(0, models{}, moment)), maxDown).read(&f); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, f.unpack(models{}, moment)); d != "" {
			t.Error(d)
		}
	}
}

// TestClocksOfTwo: moments arrive by the receiver's clock, whatever its offset.
func TestClocksOfTwo(t *testing.T) {
	there := moment.Add(-240 * time.Hour)
	u := Report{Demand: []activator.Demand{{Name: name("m"), Queued: 1, Oldest: moment.Add(-time.Second)}}}
	got, err := u.pack(true, 0, moment).unpack(there)
	if err != nil || !got.Demand[0].Oldest.Equal(there.Add(-time.Second)) || !got.Demand[0].LastEnd.IsZero() {
		t.Errorf("%+v, %v", got, err)
	}
	d := Update{Functions: []snapshot.Snapshot{{
		Name:      name("m"),
		Failure:   &snapshot.Failure{Reason: "no", Until: moment.Add(time.Minute)},
		Blocked:   &snapshot.Blocked{At: moment.Add(-time.Second)},
		ColdStart: &functions.Timeline{Began: moment.Add(-2 * time.Second)},
	}}}
	f := d.pack(0, models{}, moment).unpack(models{}, there).Functions[0]
	if !f.Failure.Until.Equal(there.Add(time.Minute)) || !f.Failure.At.IsZero() || !f.Blocked.At.Equal(there.Add(-time.Second)) ||
		!f.ColdStart.Began.Equal(there.Add(-2*time.Second)) {
		t.Errorf("%+v %+v %+v", f.Failure, f.Blocked, f.ColdStart)
	}
}

// TestModelsGoOnce: a snapshot is sent without a model that the receiver has, and arrives
// with that model.
func TestModelsGoOnce(t *testing.T) {
	m := &functions.Model{Metadata: functions.Metadata{Name: "m", Namespace: "a"}, Dir: "/models"}
	f := ready(name("m"), "r")
	f.Model = m
	sent, got := models{}, models{}
	var sizes []int
	var wire bytes.Buffer
	p := newStream(&wire, maxDown, func(b []byte) error { sizes = append(sizes, len(b)); _, err := wire.Write(b); return err }, maxDown,
		func() {})
	var last Update
	for i, d := range []Update{
		{FullSync: true, Functions: []snapshot.Snapshot{f}},
		{Functions: []snapshot.Snapshot{f}},
		{Functions: []snapshot.Snapshot{f}},
		{Removed: []functions.Name{f.Name}},
		{Functions: []snapshot.Snapshot{f}}, // the function was removed meanwhile
		{FullSync: true, Functions: []snapshot.Snapshot{f}},
	} {
		if err := p.write(d.pack(uint64(i), sent, moment)); err != nil {
			t.Fatal(err)
		}
		var w updateFrame
		if err := p.read(&w); err != nil {
			t.Fatal(err)
		}
		last = w.unpack(got, moment)
		if len(last.Functions) == 1 && (last.Functions[0].Model == nil || last.Functions[0].Model.Dir != "/models") {
			t.Fatalf("message %d: the model is %+v", i, last.Functions[0].Model)
		}
	}
	if sizes[1] != sizes[2] || sizes[1] >= sizes[4] || sizes[4] >= sizes[0] {
		t.Errorf("sizes %v", sizes)
	}
}

// TestOlderAndNewer: the ends know different fields during an upgrade.
func TestOlderAndNewer(t *testing.T) {
	type demand struct {
		Name  functions.Name
		Later map[string]int // a field of a later version
	}
	type news struct {
		Hello       *Hello
		DemandHints []functions.Name
		Demand      []demand
		Later       *struct{ X []string }
	}
	type other struct {
		Report     news
		AppliedSeq uint64
		Later      string
	}
	x := other{
		Report: news{Hello: &Hello{ID: "x"}, DemandHints: []functions.Name{name("m")}, Demand: []demand{{name("n"), map[string]int{"z": 1}}},
			Later: &struct{ X []string }{[]string{"y"}}},
		AppliedSeq: 5, Later: "l",
	}
	var f reportFrame
	p := played(recorded(t, &x, &x), maxUp)
	for range 2 {
		if err := p.read(&f); err != nil {
			t.Fatal(err)
		}
		if f.AppliedSeq != 5 || f.Report.Hello.ID != "x" || f.Report.DemandHints[0] != name("m") || f.Report.Demand[0].Name != name("n") {
			t.Errorf("%+v", f)
		}
		f = reportFrame{}
	}
}

// TestBadFrames: invalid frames end the connection, and allocate only what arrives.
func TestBadFrames(t *testing.T) {
	good := recorded(t, (Report{Hello: &Hello{Kind: KindActivator, ID: "x"}}).pack(true, 0, moment))
	length := func(n uint32) []byte { return binary.BigEndian.AppendUint32([]byte{0xfc}, n) } // as gob announces it
	long := append(length(maxUp+1), make([]byte, maxUp+1)...)
	for what, c := range map[string]struct {
		bytes []byte
		want  error
	}{
		"nothing":                  {nil, io.EOF},
		"half a length":            {length(500)[:2], io.EOF},
		"half a message":           {good[:len(good)-5], io.EOF},
		"a length without bytes":   {length(maxUp - 5), io.EOF},
		"a length beyond any":      {append([]byte{0xf8}, "\x7fabcdefg"...), nil},
		"longer than any may be":   {long, errTooLong},
		"more than it needs":       {append(slices.Clone(good), good[len(good)-3:]...), nil},
		"bytes that mean nothing":  {append([]byte{8}, "abcdefgh"...), nil},
		"lengths of nothing":       {make([]byte, 400), nil},
		"a message of another one": {recorded(t, &struct{ News int }{4}), nil},
	} {
		var f reportFrame
		p := played(c.bytes, maxUp)
		err := p.read(&f)
		if err == nil {
			err = p.read(&f)
		}
		if err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
	for what, d := range map[string]activator.Demand{
		"active":  {Active: -1},
		"queued":  {Queued: -1},
		"low":     {Low: admission.LowLoad{Queued: -1}},
		"flights": {InFlight: map[string]int{"a": -1}},
	} {
		if _, err := (Report{Demand: []activator.Demand{d}}).pack(true, 0, moment).unpack(moment); !errors.Is(err, errDemand) {
			t.Errorf("%s below nothing: %v", what, err)
		}
	}
}

func FuzzUp(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		p := played(b, 1<<16)
		for {
			var u reportFrame
			if p.read(&u) != nil {
				return
			}
			_, _ = u.unpack(moment)
		}
	})
}

func FuzzDown(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		p := played(b, 1<<16)
		known := models{}
		for {
			var d updateFrame
			if p.read(&d) != nil {
				return
			}
			d.unpack(known, moment)
		}
	})
}

func seed(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	var up Report
	var down Update
	fill(reflect.ValueOf(&up).Elem(), r)
	fill(reflect.ValueOf(&down).Elem(), r)
	f.Add(recorded(f, up.pack(true, 1, moment), (Report{}).pack(false, 1, moment)))
	f.Add(recorded(f, down.pack(1, models{}, moment), &updateFrame{Ping: true}, (Update{}).pack(2, models{}, moment)))
	f.Add([]byte{})
	f.Add([]byte{1, 0})
	f.Add([]byte{3, 2, 255, 130})
}
