// Defaults of the kinds of the groups apps and batch.

package defaults

import (
	"maps"
	"math"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	revisionHistoryLimit      = 10
	progressDeadlineSeconds   = 600
	jobBackoffLimit           = 6
	successfulJobsHistory     = 3
	failedJobsHistory         = 1
	jobControllerUIDLabelOld  = "controller-uid"
	jobNameLabelOld           = "job-name"
	rollingUpdateDefaultShare = "25%"
)

func deployment(o *appsv1.Deployment) {
	s := &o.Spec
	podTemplateSpec(&s.Template)
	setPtr(&s.Replicas, 1)
	set(&s.Strategy.Type, appsv1.RollingUpdateDeploymentStrategyType)
	if s.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
		setPtr(&s.Strategy.RollingUpdate, appsv1.RollingUpdateDeployment{})
		setPtr(&s.Strategy.RollingUpdate.MaxUnavailable, intstr.FromString(rollingUpdateDefaultShare))
		setPtr(&s.Strategy.RollingUpdate.MaxSurge, intstr.FromString(rollingUpdateDefaultShare))
	}
	setPtr(&s.RevisionHistoryLimit, revisionHistoryLimit)
	setPtr(&s.ProgressDeadlineSeconds, progressDeadlineSeconds)
}

func daemonSet(o *appsv1.DaemonSet) {
	s := &o.Spec
	podTemplateSpec(&s.Template)
	set(&s.UpdateStrategy.Type, appsv1.RollingUpdateDaemonSetStrategyType)
	if s.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		setPtr(&s.UpdateStrategy.RollingUpdate, appsv1.RollingUpdateDaemonSet{})
		setPtr(&s.UpdateStrategy.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
		setPtr(&s.UpdateStrategy.RollingUpdate.MaxSurge, intstr.FromInt32(0))
	}
	setPtr(&s.RevisionHistoryLimit, revisionHistoryLimit)
}

func replicaSet(o *appsv1.ReplicaSet) {
	podTemplateSpec(&o.Spec.Template)
	setPtr(&o.Spec.Replicas, 1)
}

func statefulSet(o *appsv1.StatefulSet) {
	s := &o.Spec
	podTemplateSpec(&s.Template)
	set(&s.PodManagementPolicy, appsv1.OrderedReadyPodManagement)
	set(&s.UpdateStrategy.Type, appsv1.RollingUpdateStatefulSetStrategyType)
	if s.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType {
		setPtr(&s.UpdateStrategy.RollingUpdate, appsv1.RollingUpdateStatefulSetStrategy{})
		setPtr(&s.UpdateStrategy.RollingUpdate.Partition, 0)
	}
	setPtr(&s.PersistentVolumeClaimRetentionPolicy, appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{})
	set(&s.PersistentVolumeClaimRetentionPolicy.WhenDeleted, appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	set(&s.PersistentVolumeClaimRetentionPolicy.WhenScaled, appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	setPtr(&s.Replicas, 1)
	setPtr(&s.RevisionHistoryLimit, revisionHistoryLimit)
	for i := range s.VolumeClaimTemplates {
		c := &s.VolumeClaimTemplates[i]
		persistentVolumeClaim(c)
		set(&c.APIVersion, "v1")
		set(&c.Kind, "PersistentVolumeClaim")
	}
}

func job(o *batchv1.Job) {
	s := &o.Spec
	jobSpec(s)
	// Without either number the job is one pod. With only completions it is
	// that many, one after the other; with only parallelism it is a work queue
	// that ends when one pod says so.
	if s.Completions == nil && s.Parallelism == nil {
		setPtr(&s.Completions, 1)
	}
	setPtr(&s.Parallelism, 1)
	if s.BackoffLimitPerIndex != nil {
		setPtr(&s.BackoffLimit, math.MaxInt32)
	}
	setPtr(&s.BackoffLimit, jobBackoffLimit)
	setPtr(&s.CompletionMode, batchv1.NonIndexedCompletion)
	setPtr(&s.Suspend, false)
	if s.PodFailurePolicy != nil {
		setPtr(&s.PodReplacementPolicy, batchv1.Failed)
	}
	setPtr(&s.PodReplacementPolicy, batchv1.TerminatingOrFailed)
	setPtr(&s.ManualSelector, false)
	if len(o.Labels) == 0 {
		o.Labels = maps.Clone(s.Template.Labels)
	}
}

// jobSpec sets what a job and the template of a job have in common.
func jobSpec(s *batchv1.JobSpec) {
	podTemplateSpec(&s.Template)
	if s.PodFailurePolicy == nil {
		return
	}
	for i := range s.PodFailurePolicy.Rules {
		conditions := s.PodFailurePolicy.Rules[i].OnPodConditions
		for j := range conditions {
			set(&conditions[j].Status, corev1.ConditionTrue)
		}
	}
}

// JobSelector gives a job that did not choose a selector by hand one that only
// its own pods can match, by the job's uid, and labels the template to match.
// A strategy calls it in its prepare step for a create, when the uid is known.
func JobSelector(o *batchv1.Job) {
	if o.Spec.ManualSelector != nil && *o.Spec.ManualSelector {
		return
	}
	labels := &o.Spec.Template.Labels
	if *labels == nil {
		*labels = make(map[string]string, 4)
	}
	uid := string(o.UID)
	for _, l := range []struct{ key, value string }{
		{jobNameLabelOld, o.Name},
		{batchv1.JobNameLabel, o.Name},
		{jobControllerUIDLabelOld, uid},
		{batchv1.ControllerUidLabel, uid},
	} {
		if (*labels)[l.key] == "" {
			(*labels)[l.key] = l.value
		}
	}
	if o.Spec.Selector == nil {
		o.Spec.Selector = &metav1.LabelSelector{}
	}
	if o.Spec.Selector.MatchLabels == nil {
		o.Spec.Selector.MatchLabels = make(map[string]string, 1)
	}
	if o.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel] == "" {
		o.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel] = uid
	}
}

func cronJob(o *batchv1.CronJob) {
	s := &o.Spec
	jobSpec(&s.JobTemplate.Spec)
	set(&s.ConcurrencyPolicy, batchv1.AllowConcurrent)
	setPtr(&s.Suspend, false)
	setPtr(&s.SuccessfulJobsHistoryLimit, successfulJobsHistory)
	setPtr(&s.FailedJobsHistoryLimit, failedJobsHistory)
}
