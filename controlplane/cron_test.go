package controlplane

// CronJobs as people use them: kubectl's verbs against a real API server and the
// controllers.

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestCron: a CronJob makes a Job, which runs; one made from it by hand runs too.
func TestCron(t *testing.T) {
	c := workload{startCluster(t)}
	c.sees(`^cronjob.batch/tick created\n$`, "create", "cronjob", "tick", "--image=one", "--schedule=0 0 29 2 *")
	// Forbid, since what a minute's end would bring is not what this is about.
	c.sees(`patched`, "patch", "cronjob", "tick", "-p", `{"spec":{"schedule":"@every 1s","concurrencyPolicy":"Forbid"}}`)
	status := func() string {
		cj, err := c.admin.BatchV1().CronJobs(workNamespace).Get(t.Context(), "tick", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		s := cj.Status
		return fmt.Sprintf("active %d scheduled %v succeeded %v", len(s.Active), s.LastScheduleTime != nil, s.LastSuccessfulTime != nil)
	}
	c.becomes("active 1 scheduled true succeeded false", status)
	c.sees(`patched`, "patch", "cronjob", "tick", "-p", `{"spec":{"suspend":true}}`)
	c.sees(`^tick +@every 1s +<none> +True +1 +\d+s +\d+s$`, "get", "cj")
	c.sees(`SuccessfulCreate .*cronjob-controller.*Created job tick-\d+$`, "describe", "cronjob", "tick")
	c.sees(`^job.batch/hand created\n$`, "create", "job", "hand", "--from=cronjob/tick")
	c.becomes("2", func() string { return fmt.Sprint(c.succeed("one")) })
	c.becomes("active 0 scheduled true succeeded true", status)
	c.sees(`condition met`, "wait", "--for=condition=complete", "job/hand", "--timeout=1m") // the CronJob's status says nothing of it
	c.sees(`^hand Complete$(?s:.*)^tick-\d+ Complete$`, "get", "jobs", "-o", `jsonpath={range .items[*]}{.metadata.name} {.status.conditions[?(@.type=="Complete")].type}{"\n"}{end}`)
	c.sees(`deleted`, "delete", "cronjob", "tick")
	c.becomes("", func() string { // Jobs go with it, also the one by hand
		out, err := c.kubectl("get", "jobs", "-o", "name")
		return fmt.Sprint(strings.TrimSpace(out), map[bool]string{true: "failed"}[err != nil])
	})
	if !c.writers.wrote("cronjob-controller") {
		t.Error("nothing was written by cronjob-controller")
	}
}

// succeed ends the pods of an image as nodes would, and returns how many there are.
func (c workload) succeed(image string) (n int) {
	c.t.Helper()
	for _, p := range c.pods("") {
		if p.Spec.Containers[0].Image == image {
			n++
			if p.Status.Phase != corev1.PodSucceeded {
				c.phase(p.Name, corev1.PodSucceeded, corev1.ConditionFalse)
			}
		}
	}
	return n
}
