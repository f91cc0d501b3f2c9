// The kind CronJob.

package kinds

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // a time zone must not be refused because the machine lacks the database

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func cronJobs() Kind {
	return of[batchv1.CronJob, batchv1.CronJobList](batchv1.SchemeGroupVersion, "CronJob", "cronjobs", "cronjob", Kind{
		short: []string{"cj"}, category: "all", status: true, generation: true,
		rules:    Rules{Create: create(validateCronJob), Update: update(validateCronJobUpdate)},
		warnings: withName(warningOf(cronJobWarnings)),
		defaults: defaulting(defaultCronJob),
		table:    cronJobTable,
	})
}

// cronJobWarnings warns of the jobs it makes, and of a zone that is told in the schedule.
func cronJobWarnings(w *warnings, o, old *batchv1.CronJob) {
	if old == nil || o.Generation != old.Generation {
		jobSpecWarnings(w, &o.Spec.JobTemplate.Spec, field.NewPath("spec", "jobTemplate", "spec"))
	}
	if old != nil && strings.Contains(o.Spec.Schedule, "TZ") {
		w.add("cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details")
	}
}

const (
	successfulJobsHistory = 3
	failedJobsHistory     = 1
)

func defaultCronJob(o *batchv1.CronJob) {
	s := &o.Spec
	defaultJobSpec(&s.JobTemplate.Spec)
	set(&s.ConcurrencyPolicy, batchv1.AllowConcurrent)
	setPtr(&s.Suspend, false)
	setPtr(&s.SuccessfulJobsHistoryLimit, successfulJobsHistory)
	setPtr(&s.FailedJobsHistoryLimit, failedJobsHistory)
}

// maxCronJobName leaves room for the eleven characters that the names of jobs
// add to it.
const maxCronJobName = 52

// validateCronJob checks a cron job.
func validateCronJob(o *batchv1.CronJob) field.ErrorList {
	errs := cronJobSpec(&o.Spec, true, field.NewPath("spec"))
	if len(o.Name) > maxCronJobName {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), o.Name, "must be no more than 52 characters"))
	}
	return errs
}

// validateCronJobUpdate checks a change of a cron job. A time zone written into
// the schedule was allowed once and may stay.
func validateCronJobUpdate(o, old *batchv1.CronJob) field.ErrorList {
	return cronJobSpec(&o.Spec, !strings.Contains(old.Spec.Schedule, "TZ"), field.NewPath("spec"))
}

func cronJobSpec(s *batchv1.CronJobSpec, refuseTZ bool, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	at := p.Child("schedule")
	switch {
	case s.Schedule == "":
		errs = append(errs, field.Required(at, ""))
	case refuseTZ && strings.Contains(s.Schedule, "TZ"):
		errs = append(errs, field.Invalid(at, s.Schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"))
	default:
		if err := parseSchedule(s.Schedule); err != nil {
			errs = append(errs, field.Invalid(at, s.Schedule, err.Error()))
		}
	}
	errs = append(errs, timeZone(s.TimeZone, p.Child("timeZone"))...)
	errs = append(errs, optionalNonNegative(s.StartingDeadlineSeconds, p.Child("startingDeadlineSeconds"))...)
	errs = append(errs, optionalNonNegative(s.SuccessfulJobsHistoryLimit, p.Child("successfulJobsHistoryLimit"))...)
	errs = append(errs, optionalNonNegative(s.FailedJobsHistoryLimit, p.Child("failedJobsHistoryLimit"))...)
	errs = append(errs, oneOf(s.ConcurrencyPolicy, p.Child("concurrencyPolicy"),
		batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent)...)
	if selector := s.JobTemplate.Spec.Selector; selector != nil {
		errs = append(errs, younger(field.Invalid(p.Child("jobTemplate", "spec", "selector"), selector, "`selector` will be auto-generated"))...)
	}
	if deref(s.JobTemplate.Spec.ManualSelector) {
		errs = append(errs, field.NotSupported(p.Child("jobTemplate", "spec", "manualSelector"), true, []string{"nil", "false"}))
	}
	errs = append(errs, validLabels(s.JobTemplate.Labels, p.Child("jobTemplate", "metadata", "labels"))...)
	return append(errs, jobSpec(&s.JobTemplate.Spec, p.Child("jobTemplate", "spec"))...)
}

func timeZone(name *string, p *field.Path) field.ErrorList {
	switch {
	case name == nil:
		return nil
	case *name == "":
		return field.ErrorList{field.Invalid(p, *name, "timeZone must be nil or non-empty string")}
	case strings.EqualFold(*name, "Local"):
		return field.ErrorList{field.Invalid(p, *name, "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones")}
	}
	if _, err := time.LoadLocation(*name); err != nil {
		return field.ErrorList{field.Invalid(p, *name, err.Error())}
	}
	return nil
}

// parseSchedule reads the five fields of crontab(5), or one of the short forms
// that begin with @.
func parseSchedule(s string) error {
	if rest, ok := strings.CutPrefix(s, "TZ="); ok {
		_, s, _ = strings.Cut(rest, " ")
	} else if rest, ok := strings.CutPrefix(s, "CRON_TZ="); ok {
		_, s, _ = strings.Cut(rest, " ")
	}
	s = strings.TrimSpace(s)
	if strings.HasPrefix(s, "@") {
		return parseDescriptor(s)
	}
	fields := strings.Fields(s)
	ranges := []struct {
		low, high int
		names     string
	}{
		{0, 59, ""},
		{0, 23, ""},
		{1, 31, ""},
		{1, 12, "jan feb mar apr may jun jul aug sep oct nov dec"},
		{0, 6, "sun mon tue wed thu fri sat"},
	}
	if len(fields) != len(ranges) {
		return fmt.Errorf("expected exactly %d fields, found %d: %v", len(ranges), len(fields), fields)
	}
	for i, f := range fields {
		for part := range strings.SplitSeq(f, ",") {
			if err := parseRange(part, ranges[i].low, ranges[i].high, strings.Fields(ranges[i].names)); err != nil {
				return err
			}
		}
	}
	return nil
}

func parseDescriptor(s string) error {
	switch s {
	case "@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly":
		return nil
	}
	if every, ok := strings.CutPrefix(s, "@every "); ok {
		if _, err := time.ParseDuration(every); err != nil {
			return fmt.Errorf("failed to parse duration %s: %w", s, err)
		}
		return nil
	}
	return fmt.Errorf("unrecognized descriptor: %s", s)
}

// parseRange reads *, N, N-M or either of them followed by /STEP.
func parseRange(s string, low, high int, names []string) error {
	span, step, stepped := strings.Cut(s, "/")
	if stepped {
		n, err := strconv.Atoi(step)
		if err != nil {
			return fmt.Errorf("failed to parse int from %s: %w", step, errors.Unwrap(err))
		}
		if n <= 0 {
			return fmt.Errorf("step of range should be a positive number: %s", s)
		}
	}
	if span == "*" || span == "?" {
		return nil
	}
	first, last, ranged := strings.Cut(span, "-")
	a, err := parseNumber(first, low, names)
	if err != nil {
		return err
	}
	b := a
	if ranged {
		if b, err = parseNumber(last, low, names); err != nil {
			return err
		}
	} else if stepped {
		b = high
	}
	switch {
	case a < low:
		return fmt.Errorf("beginning of range (%d) below minimum (%d): %s", a, low, s)
	case b > high:
		return fmt.Errorf("end of range (%d) above maximum (%d): %s", b, high, s)
	case a > b:
		return fmt.Errorf("beginning of range (%d) beyond end of range (%d): %s", a, b, s)
	}
	return nil
}

// parseNumber reads a number, or a name that stands for one counted from low.
func parseNumber(s string, low int, names []string) (int, error) {
	for i, n := range names {
		if strings.EqualFold(n, s) {
			return low + i, nil
		}
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0, fmt.Errorf("failed to parse int from %s: %w", s, errors.Unwrap(err))
	}
	if n < 0 {
		return 0, fmt.Errorf("negative number (%d) not allowed: %s", n, s)
	}
	return n, nil
}

func cronJobTable(gr schema.GroupResource) rest.TableConvertor {
	spec, status := batchv1.CronJobSpec{}.SwaggerDoc(), batchv1.CronJobStatus{}.SwaggerDoc()
	return newTable(gr, slices.Concat(columns{
		nameColumn(),
		text("Schedule", spec["schedule"]),
		text("Timezone", spec["timeZone"]),
		boolean("Suspend", spec["suspend"]),
		integer("Active", status["active"]),
		text("Last Schedule", status["lastScheduleTime"]),
		ageColumn(),
	}, templateColumns(), columns{selectorColumn(batchv1.JobSpec{}.SwaggerDoc()["selector"])}), func(o *batchv1.CronJob, now time.Time) []any {
		last := none
		if o.Status.LastScheduleTime != nil {
			last = age(*o.Status.LastScheduleTime, now)
		}
		names, images := templateCells(o.Spec.JobTemplate.Spec.Template.Spec.Containers)
		return []any{
			o.Name, o.Spec.Schedule, derefOr(o.Spec.TimeZone, none), boolCell(o.Spec.Suspend), int64(len(o.Status.Active)),
			last, age(o.CreationTimestamp, now), names, images, metav1.FormatLabelSelector(o.Spec.JobTemplate.Spec.Selector),
		}
	})
}
