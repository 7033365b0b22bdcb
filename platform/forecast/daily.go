package forecast

import (
	"math"
	"time"
)

const (
	quartersPerDay = 96
	quarterHour    = 24 * time.Hour / quartersPerDay
	fullShare      = 255 // the stored value of a share of 1
	minDailyDays   = 3   // observed days before a daily pattern is reported
	minDailyShare  = 0.6 // share of days for a quarter of an hour to count as used daily
	fadesFrom      = 64  // recorded idle times from which on counts are halved
	fadeEvery      = 3   // days between two halvings
)

// daily holds, for each quarter of an hour, the share of the last days on which a
// function was used in it: a moving average in which the last day weighs a quarter.
type daily struct {
	share [quartersPerDay]uint8
	today [2]uint64 // bit set of the quarters of day in which it was used
	day   int32     // days since 1970 by the wall clock; 0 none
	seen  uint16    // days observed
}

func dayOf(t time.Time) int32 {
	_, zone := t.Zone()
	return int32((t.Unix() + int64(zone)) / 86400)
}

func quarterOf(t time.Time) int { return (t.Hour()*60 + t.Minute()) / (24 * 60 / quartersPerDay) }

// record adds a use at t. It reports whether the old counts of the function must now
// be halved.
func (d *daily) record(t time.Time) (fade bool) {
	fade = d.advanceTo(dayOf(t))
	s := quarterOf(t)
	d.today[s/64] |= 1 << (s % 64)
	return fade
}

// advanceTo closes the days before day, and makes day the current one.
func (d *daily) advanceTo(day int32) (fade bool) {
	switch {
	case d.day == 0:
		d.day = day
		return false
	case day <= d.day:
		return false
	}
	for n := 0; d.day < day && n < 2*quartersPerDay; n++ { // older shares have decayed to 0
		for i := range d.share {
			s := int(d.share[i])
			if d.today[i/64]&(1<<(i%64)) != 0 {
				s += (fullShare - s + 3) / 4
			} else {
				s -= (s + 3) / 4
			}
			d.share[i] = uint8(s)
		}
		d.today = [2]uint64{}
		d.day++
		if d.seen < 1<<15 {
			d.seen++
		}
		fade = fade || d.seen%fadeEvery == 0
	}
	d.day = day
	return fade
}

// next is the begin of the next quarter of an hour, within a day, in which the function
// is used on most days, but not in the quarter before.
func (d *daily) next(now time.Time) (at time.Time, share float64, ok bool) {
	if d.seen+1 < minDailyDays || d.day == 0 {
		return at, 0, false
	}
	c := *d
	c.advanceTo(dayOf(now))
	if c.seen < minDailyDays {
		return at, 0, false
	}
	// The moving average starts at 0: normalise by the value it can have reached by now.
	whole := (1 - math.Pow(0.75, float64(c.seen))) * fullShare
	now0 := quarterOf(now)
	for i := 1; i <= quartersPerDay; i++ {
		s := (now0 + i) % quartersPerDay
		have, before := float64(c.share[s])/whole, float64(c.share[(s+quartersPerDay-1)%quartersPerDay])/whole
		if have >= minDailyShare && before < minDailyShare {
			begin := now.Truncate(time.Minute).Add(-time.Duration(now.Minute()%(24*60/quartersPerDay)) * time.Minute)
			return begin.Add(time.Duration(i) * quarterHour), min(have, 1), true
		}
	}
	return at, 0, false
}
