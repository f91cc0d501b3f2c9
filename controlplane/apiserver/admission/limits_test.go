package admission

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
)

func amounts(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

// limited is the plugin with one limit range.
func limited(items ...corev1.LimitRangeItem) admission.Interface {
	return LimitRanger(func(_ context.Context, namespace string) ([]corev1.LimitRange, error) {
		if namespace != "ns" {
			return nil, nil
		}
		return []corev1.LimitRange{{Spec: corev1.LimitRangeSpec{Limits: items}}}, nil
	})
}

func containers(list ...corev1.ResourceRequirements) *corev1.Pod {
	p := &corev1.Pod{}
	p.Namespace = "ns"
	for i, r := range list {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: string(rune('a' + i)), Resources: r})
	}
	return p
}

func TestLimitRangerGives(t *testing.T) {
	p := limited(corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Default: amounts("cpu", "2", "memory", "1Gi"), DefaultRequest: amounts("cpu", "1")}, corev1.LimitRangeItem{Type: corev1.LimitTypePod})
	pod := containers(corev1.ResourceRequirements{}, corev1.ResourceRequirements{Limits: amounts("cpu", "5"), Requests: amounts("cpu", "5")})
	pod.Spec.InitContainers = containers(corev1.ResourceRequirements{}).Spec.Containers
	a := attributes(pod, nil, podResource, "", admission.Create)
	if err := p.(admission.MutationInterface).Admit(t.Context(), a, nil); err != nil {
		t.Fatal(err)
	}
	first, second := pod.Spec.Containers[0].Resources, pod.Spec.Containers[1].Resources
	if !first.Requests.Cpu().Equal(resource.MustParse("1")) || !first.Limits.Cpu().Equal(resource.MustParse("2")) || !first.Limits.Memory().Equal(resource.MustParse("1Gi")) {
		t.Errorf("%v", first)
	}
	if !second.Limits.Cpu().Equal(resource.MustParse("5")) || !second.Requests.Cpu().Equal(resource.MustParse("5")) || second.Limits.Memory().IsZero() {
		t.Errorf("%v", second)
	}
	const want = "LimitRanger plugin set: cpu request for init container a; cpu, memory limit for init container a; cpu request for container a; cpu, memory limit for container a; memory limit for container b"
	if got := pod.Annotations[limitAnnotation]; got != want {
		t.Errorf("%s, want\n%s", got, want)
	}
}

func TestLimitRangerRefuses(t *testing.T) {
	both := func(request, limit string) *corev1.Pod {
		return containers(corev1.ResourceRequirements{Requests: amounts("cpu", request), Limits: amounts("cpu", limit)})
	}
	item := func(typ corev1.LimitType, least, most, ratio string) corev1.LimitRangeItem {
		i := corev1.LimitRangeItem{Type: typ}
		for list, v := range map[*corev1.ResourceList]string{&i.Min: least, &i.Max: most, &i.MaxLimitRequestRatio: ratio} {
			if v != "" {
				*list = amounts("cpu", v)
			}
		}
		return i
	}
	each, whole := corev1.LimitTypeContainer, corev1.LimitTypePod
	for _, c := range []struct {
		pod  *corev1.Pod
		item corev1.LimitRangeItem
		want string // empty: allowed
	}{
		{both("1", "2"), item(each, "1", "2", "2"), ""},
		{both("500m", "2"), item(each, "1", "", ""), "minimum cpu usage per Container is 1, but request is 500m"},
		{both("1", "3"), item(each, "", "2", ""), "maximum cpu usage per Container is 2, but limit is 3"},
		{both("1", "3"), item(each, "", "", "2"), "cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000"},
		{containers(corev1.ResourceRequirements{}), item(each, "1", "2", ""), "minimum cpu usage per Container is 1.  No request is specified, maximum cpu usage per Container is 2.  No limit is specified"},
		{containers(corev1.ResourceRequirements{}), item(each, "", "", "2"), "no request is specified or request is 0"},
		{containers(both("1", "2").Spec.Containers[0].Resources, both("1", "2").Spec.Containers[0].Resources), item(whole, "", "3", ""), "maximum cpu usage per Pod is 3, but limit is 4"},
		{containers(both("1", "2").Spec.Containers[0].Resources, both("1", "2").Spec.Containers[0].Resources), item(whole, "2", "4", "2"), ""},
	} {
		p := limited(c.item).(admission.ValidationInterface)
		err := p.Validate(t.Context(), attributes(c.pod, nil, podResource, "", admission.Create), nil)
		if c.want == "" && err != nil || c.want != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v, want %q", err, c.want)
		}
		if err := p.Validate(t.Context(), attributes(c.pod, c.pod, podResource, "", admission.Update), nil); err != nil {
			t.Errorf("an update that changes nothing of it: %v", err)
		}
		err = p.Validate(t.Context(), attributes(c.pod, c.pod, podResource, "resize", admission.Update), nil)
		if (err != nil) != (c.want != "") {
			t.Errorf("a resize: %v, want %q", err, c.want)
		}
	}
	claim := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{Resources: corev1.VolumeResourceRequirements{Requests: amounts("storage", "5Gi")}}}
	claim.Namespace = "ns"
	storage := limited(corev1.LimitRangeItem{Type: corev1.LimitTypePersistentVolumeClaim, Min: amounts("storage", "1Gi"), Max: amounts("storage", "2Gi")})
	err := storage.(admission.ValidationInterface).Validate(t.Context(), attributes(claim, nil, corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), "", admission.Create), nil)
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 5Gi") {
		t.Errorf("%v", err)
	}
}

// TestLimitRangerCases are Kubernetes' own: pods of equal containers against one bound.
func TestLimitRangerCases(t *testing.T) {
	const each, whole = corev1.LimitTypeContainer, corev1.LimitTypePod
	for _, c := range []struct {
		typ             corev1.LimitType
		n               int
		resource        string
		request, limit  string
		min, max, ratio string
		refused         bool
	}{
		{each, 1, "cpu", "100m", "", "50m", "", "", false},
		{each, 1, "cpu", "100m", "200m", "50m", "", "", false},
		{each, 1, "memory", "60Mi", "", "50Mi", "", "", false},
		{each, 1, "memory", "60Mi", "100Mi", "50Mi", "", "", false},
		{each, 1, "cpu", "500m", "1", "", "2", "", false},
		{each, 1, "cpu", "", "1", "", "2", "", false},
		{each, 1, "memory", "250Mi", "500Mi", "", "1Gi", "", false},
		{each, 1, "memory", "", "500Mi", "", "1Gi", "", false},
		{each, 1, "cpu", "500m", "750m", "", "", "1.5", false},
		{each, 1, "cpu", "5m", "35m", "", "", "7", false}, // 0.035 / 0.005 is more than 7 in binary
		{each, 1, "cpu", "5m", "36m", "", "", "7", true},
		{each, 1, "cpu", "9m", "63m", "", "", "7", false},
		{each, 1, "memory", "9007199254740993", "9007199254740993", "", "", "1", false}, // more than 2^53
		{whole, 2, "cpu", "75m", "", "100m", "", "", false},
		{whole, 2, "cpu", "75m", "200m", "100m", "", "", false},
		{whole, 2, "memory", "60Mi", "", "100Mi", "", "", false},
		{whole, 2, "memory", "60Mi", "100Mi", "100Mi", "", "", false},
		{whole, 2, "cpu", "500m", "1", "", "2", "", false},
		{whole, 2, "cpu", "", "1", "", "2", "", false},
		{whole, 2, "memory", "250Mi", "500Mi", "", "1Gi", "", false},
		{whole, 2, "memory", "", "500Mi", "", "1Gi", "", false},
		{whole, 3, "memory", "300Mi", "450Mi", "", "2Gi", "1.5", false},

		{each, 1, "cpu", "40m", "", "50m", "", "", true},
		{each, 1, "cpu", "40m", "200m", "50m", "", "", true},
		{each, 1, "cpu", "", "", "50m", "", "", true},
		{each, 1, "memory", "40Mi", "", "50Mi", "", "", true},
		{each, 1, "memory", "40Mi", "100Mi", "50Mi", "", "", true},
		{each, 1, "memory", "", "", "50Mi", "", "", true},
		{each, 1, "cpu", "500m", "2500m", "", "2", "", true},
		{each, 1, "cpu", "", "2500m", "", "2", "", true},
		{each, 1, "cpu", "", "", "", "2", "", true},
		{each, 1, "cpu", "1250m", "2500m", "", "", "1", true},
		{each, 1, "memory", "250Mi", "2Gi", "", "1Gi", "", true},
		{each, 1, "memory", "", "2Gi", "", "1Gi", "", true},
		{each, 1, "memory", "", "", "", "1Gi", "", true},
		{whole, 1, "cpu", "75m", "", "100m", "", "", true},
		{whole, 1, "cpu", "75m", "200m", "100m", "", "", true},
		{whole, 1, "memory", "60Mi", "", "100Mi", "", "", true},
		{whole, 1, "memory", "60Mi", "100Mi", "100Mi", "", "", true},
		{whole, 3, "cpu", "500m", "1", "", "2", "", true},
		{whole, 3, "cpu", "", "1", "", "2", "", true},
		{whole, 3, "memory", "250Mi", "500Mi", "", "1Gi", "", true},
		{whole, 3, "memory", "", "500Mi", "", "1Gi", "", true},
		{whole, 3, "memory", "250Mi", "500Mi", "", "2Gi", "1.5", true},
	} {
		of := func(amount string) corev1.ResourceList {
			if amount == "" {
				return nil
			}
			return amounts(c.resource, amount)
		}
		var all []corev1.ResourceRequirements
		for range c.n {
			all = append(all, corev1.ResourceRequirements{Requests: of(c.request), Limits: of(c.limit)})
		}
		p := limited(corev1.LimitRangeItem{Type: c.typ, Min: of(c.min), Max: of(c.max), MaxLimitRequestRatio: of(c.ratio)}).(admission.ValidationInterface)
		err := p.Validate(t.Context(), attributes(containers(all...), nil, podResource, "", admission.Create), nil)
		if apierrors.IsForbidden(err) != c.refused || (err != nil) != c.refused {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// A claim that is being deleted may lose its finalizers, whatever the bounds are now.
func TestLimitRangerLetsGo(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{Resources: corev1.VolumeResourceRequirements{Requests: amounts("storage", "5Gi")}}}
	claim.Namespace = "ns"
	p := limited(corev1.LimitRangeItem{Type: corev1.LimitTypePersistentVolumeClaim, Max: amounts("storage", "2Gi")}).(admission.ValidationInterface)
	update := func() error {
		return p.Validate(t.Context(), attributes(claim, claim, corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), "", admission.Update), nil)
	}
	if err := update(); !apierrors.IsForbidden(err) {
		t.Errorf("one that stays: %v", err)
	}
	claim.DeletionTimestamp = &metav1.Time{}
	if err := update(); err != nil {
		t.Errorf("one that goes: %v", err)
	}
}
