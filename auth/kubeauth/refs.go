package kubeauth

// References: the secrets, config maps and claims that a pod names.

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// namesSecret reports whether the node needs the named Secret to run pod.
func namesSecret(pod *corev1.Pod, name string) bool {
	for i := range pod.Spec.ImagePullSecrets {
		if pod.Spec.ImagePullSecrets[i].Name == name {
			return true
		}
	}
	for i := range pod.Spec.Volumes {
		if volumeSecret(&pod.Spec.Volumes[i].VolumeSource, name) {
			return true
		}
	}
	return anyEnv(pod, func(e *corev1.EnvVarSource) bool {
		return e.SecretKeyRef != nil && e.SecretKeyRef.Name == name
	}, func(f *corev1.EnvFromSource) bool {
		return f.SecretRef != nil && f.SecretRef.Name == name
	})
}

// volumeSecret reports whether a volume is, or is mounted with, a Secret.
func volumeSecret(v *corev1.VolumeSource, name string) bool {
	local := func(r *corev1.LocalObjectReference) bool { return r != nil && r.Name == name }
	switch {
	case v.Secret != nil:
		return v.Secret.SecretName == name
	case v.Projected != nil:
		for i := range v.Projected.Sources {
			if s := v.Projected.Sources[i].Secret; s != nil && s.Name == name {
				return true
			}
		}
		return false
	case v.CSI != nil:
		return local(v.CSI.NodePublishSecretRef)
	case v.AzureFile != nil:
		return v.AzureFile.SecretName == name
	case v.CephFS != nil:
		return local(v.CephFS.SecretRef)
	case v.Cinder != nil:
		return local(v.Cinder.SecretRef)
	case v.FlexVolume != nil:
		return local(v.FlexVolume.SecretRef)
	case v.ISCSI != nil:
		return local(v.ISCSI.SecretRef)
	case v.RBD != nil:
		return local(v.RBD.SecretRef)
	case v.ScaleIO != nil:
		return local(v.ScaleIO.SecretRef)
	case v.StorageOS != nil:
		return local(v.StorageOS.SecretRef)
	}
	return false
}

// namesConfigMap reports whether the node needs the named ConfigMap to run pod.
func namesConfigMap(pod *corev1.Pod, name string) bool {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.ConfigMap != nil && v.ConfigMap.Name == name {
			return true
		}
		if v.Projected == nil {
			continue
		}
		for j := range v.Projected.Sources {
			if c := v.Projected.Sources[j].ConfigMap; c != nil && c.Name == name {
				return true
			}
		}
	}
	return anyEnv(pod, func(e *corev1.EnvVarSource) bool {
		return e.ConfigMapKeyRef != nil && e.ConfigMapKeyRef.Name == name
	}, func(f *corev1.EnvFromSource) bool {
		return f.ConfigMapRef != nil && f.ConfigMapRef.Name == name
	})
}

// namesClaim reports whether pod mounts the named PersistentVolumeClaim.
func namesClaim(pod *corev1.Pod, name string) bool { return slices.Contains(claimsOf(pod), name) }

// claimsOf returns the names of the PersistentVolumeClaims that pod mounts.
func claimsOf(pod *corev1.Pod) []string {
	var out []string
	for i := range pod.Spec.Volumes {
		switch v := &pod.Spec.Volumes[i]; {
		case v.PersistentVolumeClaim != nil:
			out = append(out, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			// The claim of an ephemeral volume is named after the pod and the volume.
			out = append(out, pod.Name+"-"+v.Name)
		}
	}
	return out
}

// anyEnv reports whether one of the funcs returns true for an environment source of any
// container.
func anyEnv(pod *corev1.Pod, one func(*corev1.EnvVarSource) bool, all func(*corev1.EnvFromSource) bool) bool {
	for _, c := range environments(&pod.Spec) {
		for i := range c.env {
			if s := c.env[i].ValueFrom; s != nil && one(s) {
				return true
			}
		}
		for i := range c.from {
			if all(&c.from[i]) {
				return true
			}
		}
	}
	return false
}

type environment struct {
	env  []corev1.EnvVar
	from []corev1.EnvFromSource
}

func environments(spec *corev1.PodSpec) []environment {
	var out []environment
	for _, cs := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range cs {
			out = append(out, environment{cs[i].Env, cs[i].EnvFrom})
		}
	}
	for i := range spec.EphemeralContainers {
		out = append(out, environment{spec.EphemeralContainers[i].Env, spec.EphemeralContainers[i].EnvFrom})
	}
	return out
}

// namesAnything reports which object of its namespace pod names, which a mirror pod must
// not do; empty if none.
func namesAnything(pod *corev1.Pod) string {
	if pod.Spec.ServiceAccountName != "" {
		return "a service account"
	}
	if len(pod.Spec.ImagePullSecrets) > 0 {
		return "secrets"
	}
	if len(pod.Spec.ResourceClaims) > 0 {
		return "resource claims"
	}
	for i := range pod.Spec.Volumes {
		if what := volumeNames(&pod.Spec.Volumes[i].VolumeSource); what != "" {
			return what
		}
	}
	found := ""
	anyEnv(pod, func(e *corev1.EnvVarSource) bool {
		switch {
		case e.SecretKeyRef != nil:
			found = "secrets"
		case e.ConfigMapKeyRef != nil:
			found = "config maps"
		}
		return found != ""
	}, func(*corev1.EnvFromSource) bool {
		found = "secrets or config maps"
		return true
	})
	return found
}

func volumeNames(v *corev1.VolumeSource) string {
	switch {
	case v.Secret != nil, v.AzureFile != nil, v.CSI != nil && v.CSI.NodePublishSecretRef != nil,
		v.CephFS != nil && v.CephFS.SecretRef != nil, v.Cinder != nil && v.Cinder.SecretRef != nil,
		v.FlexVolume != nil && v.FlexVolume.SecretRef != nil, v.ISCSI != nil && v.ISCSI.SecretRef != nil,
		v.RBD != nil && v.RBD.SecretRef != nil, v.ScaleIO != nil && v.ScaleIO.SecretRef != nil,
		v.StorageOS != nil && v.StorageOS.SecretRef != nil:
		return "secrets"
	case v.ConfigMap != nil:
		return "config maps"
	case v.PersistentVolumeClaim != nil, v.Ephemeral != nil:
		return "persistent volume claims"
	case v.Projected != nil:
		for i := range v.Projected.Sources {
			if s := &v.Projected.Sources[i]; s.Secret != nil || s.ConfigMap != nil || s.ServiceAccountToken != nil || s.ClusterTrustBundle != nil {
				return "projected objects"
			}
		}
	}
	return ""
}
