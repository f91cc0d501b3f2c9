package cronjob

// Tests of the times that schedules name.

import (
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/utils/ptr"
)

func at(t testing.TB, s string) time.Time {
	t.Helper()
	out, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestLatest compares with what counting finds.
func TestLatest(t *testing.T) {
	for _, tc := range []struct {
		schedule, since, now string
		many                 bool
	}{
		{"0 * * * *", "2026-03-01T10:00:00Z", "2026-03-01T10:59:59Z", false},
		{"0 * * * *", "2026-03-01T10:00:00Z", "2026-03-01T11:00:00Z", false},
		{"0 * * * *", "2026-03-01T10:00:00Z", "2026-03-05T14:00:00Z", false}, // 100 times
		{"0 * * * *", "2026-03-01T10:00:00Z", "2026-03-05T15:00:00Z", true},  // 101
		{"* 0 * * *", "2026-03-01T00:10:00Z", "2026-03-01T05:00:00Z", false}, // dense at first, then none
		{"* 0 * * *", "2026-03-01T00:59:00Z", "2026-03-04T00:07:30Z", true},  // none at first, then dense
		{"30 6-16/4 * * 1-5", "2026-03-06T07:00:00Z", "2026-03-09T06:29:00Z", false},
		{"30 6-16/4 * * 1-5", "2026-03-06T07:00:00Z", "2026-03-09T06:31:00Z", false},
		{"* * 1 1 *", "2025-01-01T23:58:00Z", "2026-12-31T00:00:00Z", true},
		{"@every 7m", "2026-03-01T10:01:00Z", "2026-03-01T11:00:00Z", false},
		{"@every 90s", "2026-03-01T10:01:00Z", "2026-03-03T11:00:01Z", true},
		{"TZ=Europe/Berlin 30 2 * * *", "2026-03-28T12:00:00Z", "2026-03-29T12:00:00Z", false}, // an hour that there is not
		{"TZ=Europe/Berlin 30 2 * * *", "2026-10-24T12:00:00Z", "2026-10-25T12:00:00Z", false}, // one that there is twice
		{"TZ=Europe/Berlin 30 * * * *", "2026-10-24T23:45:00Z", "2026-10-25T12:00:00Z", false},
		{"0 0 29 2 *", "2024-02-29T00:00:00Z", "2027-12-31T00:00:00Z", false},
		{"59 23 31 2 *", "2026-03-01T10:00:00Z", "2027-03-01T10:00:00Z", false},
	} {
		s, err := parse(&batchv1.CronJobSpec{Schedule: tc.schedule, TimeZone: ptr.To("UTC")})
		if err != nil {
			t.Fatal(err)
		}
		since, now := at(t, tc.since), at(t, tc.now)
		var want time.Time
		n := 0
		for c := s.Next(since); !c.IsZero() && !c.After(now); c = s.Next(c) {
			want = c
			n++
		}
		if got := latest(s, since, now); !got.Equal(want) {
			t.Errorf("%s from %s to %s: %v, want %v", tc.schedule, tc.since, tc.now, got, want)
		}
		if got := missedMany(s, since, now); got != tc.many || got != (n > manyMissed) {
			t.Errorf("%s from %s to %s, %d times: many: %v", tc.schedule, tc.since, tc.now, n, got)
		}
	}
}

func TestNext(t *testing.T) {
	for _, tc := range []struct {
		schedule, last, now string
		want                time.Duration
	}{
		{"0 * * * *", "2026-03-01T10:00:00Z", "2026-03-01T10:59:00Z", time.Minute},
		{"@every 7m", "2026-03-01T10:01:00Z", "2026-03-01T10:05:00Z", 3 * time.Minute},
		{"0 0 29 2 *", "2016-03-01T00:00:00Z", "2028-02-28T23:00:00Z", time.Hour},
	} {
		s, err := parse(&batchv1.CronJobSpec{Schedule: tc.schedule, TimeZone: ptr.To("UTC")})
		if err != nil {
			t.Fatal(err)
		}
		if got := next(s, at(t, tc.last), at(t, tc.now)); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.schedule, got, tc.want)
		}
	}
}

// FuzzParse: whatever the schedule, reading it does not panic, and the last time that
// it names is within the bounds.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"* * * * *", "TZ=UTC", "CRON_TZ=", "TZ= * * * * *", "@every 0s", "@every -1h", "@daily", "59 23 31 2 *", "0/0 * * * *", "1-2-3 * * * *"} {
		f.Add(s, int64(1e9), int64(1e6))
	}
	f.Fuzz(func(t *testing.T, text string, from, long int64) {
		s, err := parse(&batchv1.CronJobSpec{Schedule: text})
		if err != nil || strings.Contains(text, "TZ") {
			return
		}
		since := time.Unix(from%1e10, 0)
		now := since.Add(time.Duration(long % 1e9 * 1e9))
		if got := latest(s, since, now); !got.IsZero() && (!got.After(since) || got.After(now)) {
			t.Errorf("%q: %v is not after %v and not after %v", text, got, since, now)
		}
	})
}
