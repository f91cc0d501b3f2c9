package cronjob

// The times that a schedule names.

import (
	"errors"
	"strings"
	"time"
	_ "time/tzdata" // for machines without a database of time zones

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
)

// manyMissed is how many scheduled times may be missed before a user is told.
const manyMissed = 100

// zoned tells whether a schedule names its time zone itself. It could once.
func zoned(schedule string) bool { return strings.Contains(schedule, "TZ") }

// parse reads the schedule of a CronJob whose time zone is known.
func parse(s *batchv1.CronJobSpec) (cron.Schedule, error) {
	text := s.Schedule
	if !zoned(text) && s.TimeZone != nil {
		text = "TZ=" + *s.TimeZone + " " + text
	}
	if zoned(text) && !strings.Contains(text, " ") {
		return nil, errors.New("nothing follows the time zone") // the parser would panic
	}
	return cron.ParseStandard(text)
}

// latest is the last time of s that is after since and not after now; zero if there is
// none. It costs a few steps, however long ago since is.
func latest(s cron.Schedule, since, now time.Time) time.Time {
	first := s.Next(since)
	if first.IsZero() || first.After(now) {
		return time.Time{}
	}
	if every, ok := s.(cron.ConstantDelaySchedule); ok {
		return first.Add(now.Sub(first).Truncate(every.Delay))
	}
	// A time comes after early, and none that counts after late.
	early, late := since, now
	for late.Sub(early) > time.Second {
		middle := early.Add(late.Sub(early) / 2)
		if t := s.Next(middle); t.IsZero() || t.After(now) {
			late = middle
		} else {
			early = middle
		}
	}
	return s.Next(early)
}

// next is how long it is from now to the next time of s, of which last is the last one,
// or before the first.
func next(s cron.Schedule, last, now time.Time) time.Duration {
	t := s.Next(last)
	if !t.After(now) { // so rare that the parser did not look as far ahead from last
		t = s.Next(now)
	}
	return t.Sub(now)
}

// missedMany tells whether more than manyMissed times of s are after since and not
// after now.
func missedMany(s cron.Schedule, since, now time.Time) bool {
	for range manyMissed + 1 {
		since = s.Next(since)
		if since.IsZero() || since.After(now) {
			return false
		}
	}
	return true
}
