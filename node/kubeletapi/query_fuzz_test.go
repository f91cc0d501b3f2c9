package kubeletapi

import (
	"net/url"
	"testing"
	"time"
)

// Whatever a query says, nothing but numbers that are some comes out.
func FuzzLogQuery(f *testing.F) {
	f.Add("follow=true&tailLines=5&limitBytes=10&sinceSeconds=3&stream=Stdout")
	f.Add("sinceTime=2026-01-02T03:04:05Z&timestamps=1&previous=0")
	f.Add("tailLines=-1&limitBytes=0&sinceSeconds=9223372036854775807")
	f.Fuzz(func(t *testing.T, query string) {
		q, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		now := time.Unix(1e9, 0)
		o, err := parseLogQuery(q, now)
		if err != nil {
			return
		}
		if o.Tail != nil && *o.Tail < 0 || o.LimitBytes < 0 || q.Get("sinceSeconds") != "" && o.Since.After(now) {
			t.Errorf("%+v", o)
		}
	})
}
