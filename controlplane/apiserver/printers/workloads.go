// Tables of the groups apps and batch.

package printers

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apiserver/pkg/registry/rest"
)

func appsTable(gr schema.GroupResource) rest.TableConvertor {
	switch gr.Resource {
	case "deployments":
		return deploymentTable(gr)
	case "replicasets":
		return replicaSetTable(gr)
	case "daemonsets":
		return daemonSetTable(gr)
	case "statefulsets":
		return newTable(gr, slices.Concat(columns{
			nameColumn(),
			text("Ready", "Number of the pod with ready state"),
			ageColumn(),
		}, templateColumns()), func(o *appsv1.StatefulSet, now time.Time) []any {
			names, images := templateCells(o.Spec.Template.Spec.Containers)
			return []any{o.Name, fmt.Sprintf("%d/%d", o.Status.ReadyReplicas, deref(o.Spec.Replicas, 1)), age(o.CreationTimestamp, now), names, images}
		})
	case "controllerrevisions":
		return newTable(gr, columns{
			nameColumn(),
			text("Controller", "Controller of the object"),
			text("Revision", appsv1.ControllerRevision{}.SwaggerDoc()["revision"]),
			ageColumn(),
		}, func(o *appsv1.ControllerRevision, now time.Time) []any {
			return []any{o.Name, controllerCell(o), o.Revision, age(o.CreationTimestamp, now)}
		})
	default:
		return nil
	}
}

func deploymentTable(gr schema.GroupResource) rest.TableConvertor {
	status := appsv1.DeploymentStatus{}.SwaggerDoc()
	return newTable(gr, slices.Concat(columns{
		nameColumn(),
		text("Ready", "Number of the pod with ready state"),
		integer("Up-to-date", status["updatedReplicas"]),
		integer("Available", status["availableReplicas"]),
		ageColumn(),
	}, templateColumns(), columns{selectorColumn(appsv1.DeploymentSpec{}.SwaggerDoc()["selector"])}), func(o *appsv1.Deployment, now time.Time) []any {
		names, images := templateCells(o.Spec.Template.Spec.Containers)
		return []any{
			o.Name, fmt.Sprintf("%d/%d", o.Status.ReadyReplicas, deref(o.Spec.Replicas, 1)),
			int64(o.Status.UpdatedReplicas), int64(o.Status.AvailableReplicas), age(o.CreationTimestamp, now),
			names, images, metav1.FormatLabelSelector(o.Spec.Selector),
		}
	})
}

func replicaSetTable(gr schema.GroupResource) rest.TableConvertor {
	spec, status := appsv1.ReplicaSetSpec{}.SwaggerDoc(), appsv1.ReplicaSetStatus{}.SwaggerDoc()
	return newTable(gr, slices.Concat(columns{
		nameColumn(),
		integer("Desired", spec["replicas"]),
		integer("Current", status["replicas"]),
		integer("Ready", status["readyReplicas"]),
		ageColumn(),
	}, templateColumns(), columns{selectorColumn(spec["selector"])}), func(o *appsv1.ReplicaSet, now time.Time) []any {
		names, images := templateCells(o.Spec.Template.Spec.Containers)
		return []any{
			o.Name, int64(deref(o.Spec.Replicas, 1)), int64(o.Status.Replicas), int64(o.Status.ReadyReplicas),
			age(o.CreationTimestamp, now), names, images, metav1.FormatLabelSelector(o.Spec.Selector),
		}
	})
}

func daemonSetTable(gr schema.GroupResource) rest.TableConvertor {
	status := appsv1.DaemonSetStatus{}.SwaggerDoc()
	return newTable(gr, slices.Concat(columns{
		nameColumn(),
		integer("Desired", status["desiredNumberScheduled"]),
		integer("Current", status["currentNumberScheduled"]),
		integer("Ready", status["numberReady"]),
		integer("Up-to-date", status["updatedNumberScheduled"]),
		integer("Available", status["numberAvailable"]),
		text("Node Selector", corev1.PodSpec{}.SwaggerDoc()["nodeSelector"]),
		ageColumn(),
	}, templateColumns(), columns{selectorColumn(appsv1.DaemonSetSpec{}.SwaggerDoc()["selector"])}), func(o *appsv1.DaemonSet, now time.Time) []any {
		names, images := templateCells(o.Spec.Template.Spec.Containers)
		s := o.Status
		return []any{
			o.Name, int64(s.DesiredNumberScheduled), int64(s.CurrentNumberScheduled), int64(s.NumberReady),
			int64(s.UpdatedNumberScheduled), int64(s.NumberAvailable), labelsCell(o.Spec.Template.Spec.NodeSelector),
			age(o.CreationTimestamp, now), names, images, metav1.FormatLabelSelector(o.Spec.Selector),
		}
	})
}

func batchTable(gr schema.GroupResource) rest.TableConvertor {
	switch gr.Resource {
	case "jobs":
		return newTable(gr, slices.Concat(columns{
			nameColumn(),
			text("Status", "Status of the job."),
			text("Completions", batchv1.JobStatus{}.SwaggerDoc()["succeeded"]),
			text("Duration", "Time required to complete the job."),
			ageColumn(),
		}, templateColumns(), columns{selectorColumn(batchv1.JobSpec{}.SwaggerDoc()["selector"])}), func(o *batchv1.Job, now time.Time) []any {
			names, images := templateCells(o.Spec.Template.Spec.Containers)
			return []any{
				o.Name, jobStatus(o), jobCompletions(o), jobDuration(o, now), age(o.CreationTimestamp, now),
				names, images, metav1.FormatLabelSelector(o.Spec.Selector),
			}
		})
	case "cronjobs":
		return cronJobTable(gr)
	default:
		return nil
	}
}

func jobStatus(o *batchv1.Job) string {
	has := func(t batchv1.JobConditionType) bool {
		return slices.ContainsFunc(o.Status.Conditions, func(c batchv1.JobCondition) bool {
			return c.Type == t && c.Status == corev1.ConditionTrue
		})
	}
	switch {
	case has(batchv1.JobComplete):
		return "Complete"
	case has(batchv1.JobFailed):
		return "Failed"
	case o.DeletionTimestamp != nil:
		return "Terminating"
	case has(batchv1.JobSuspended):
		return "Suspended"
	case has(batchv1.JobFailureTarget):
		return "FailureTarget"
	case has(batchv1.JobSuccessCriteriaMet):
		return "SuccessCriteriaMet"
	default:
		return "Running"
	}
}

// jobCompletions of a work queue, which has no fixed number of completions,
// names the width of the queue.
func jobCompletions(o *batchv1.Job) string {
	if o.Spec.Completions != nil {
		return fmt.Sprintf("%d/%d", o.Status.Succeeded, *o.Spec.Completions)
	}
	if p := deref(o.Spec.Parallelism, 0); p > 1 {
		return fmt.Sprintf("%d/1 of %d", o.Status.Succeeded, p)
	}
	return fmt.Sprintf("%d/1", o.Status.Succeeded)
}

func jobDuration(o *batchv1.Job, now time.Time) string {
	switch {
	case o.Status.StartTime == nil:
		return ""
	case o.Status.CompletionTime == nil:
		return duration.HumanDuration(now.Sub(o.Status.StartTime.Time))
	default:
		return duration.HumanDuration(o.Status.CompletionTime.Sub(o.Status.StartTime.Time))
	}
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
			o.Name, o.Spec.Schedule, deref(o.Spec.TimeZone, none), boolCell(o.Spec.Suspend), int64(len(o.Status.Active)),
			last, age(o.CreationTimestamp, now), names, images, metav1.FormatLabelSelector(o.Spec.JobTemplate.Spec.Selector),
		}
	})
}
